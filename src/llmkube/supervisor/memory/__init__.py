"""Bytes of this host: which engine is promised how many, which service waits, which engine has to end.

reservation, capacity, budget, policy, view  the values
admission, refusal, preemption               which service starts, why another one waits, which engine ends for it
eviction, readings                           which engine ends when memory is short, and which samples are believed
book, orders                                 the decisions about one host, and what the ledger carries out; pure
records, service_record, releases            which service was promised what, and what has to come back; pure
ledger, eviction_manager                     the tasks: scopes that hold memory, and the loop that looks and decides
learned                                      what engines really took, for the next time
"""

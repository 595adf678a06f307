"""Bytes of this host: which engine is promised how many, which service waits, which engine has to end.

reservation, capacity, budget, policy, view  the values
admission, refusal, preemption               which service starts, why another one waits, which engine ends for it
eviction, readings                           which engine ends when memory is short, and which samples are believed
book, service_record, releases               what is promised, entered without Trio
ledger, pressure                             the tasks: scopes that hold memory, and the loop that looks and decides
learned                                      what engines really took, for the next time
"""

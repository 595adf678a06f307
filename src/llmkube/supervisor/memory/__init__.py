"""Bytes of this host: which engine is promised how many, which service waits, which engine has to end.

reservation, capacity, budget, policy   the values
admission, refusal                      which service starts and which engine ends for it, why another one waits
eviction                                which engine ends when memory is short
book, records                           the decisions about one host, who was promised what, what has to come back; pure
ledger, eviction_manager                the tasks: scopes that hold memory, and the loop that looks and decides
learned                                 what engines really took, for the next time
"""

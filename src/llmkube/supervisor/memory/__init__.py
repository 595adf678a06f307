"""Memory of one host: which engine reserves how many bytes, which service waits, which engine is evicted.

reservation, capacity, budget, policy   the values
admission, refusal                      which service starts, which engines are displaced for it, why another one waits
eviction                                which engine is evicted when memory is short
book, records                           decisions about one host, its reservations, the releases it expects; pure
ledger, eviction_manager                the tasks: scopes that hold memory, and the loop that samples and decides
learned                                 memory that engines really used, for the next start
"""

"""Bytes of this host: who may start, who waits, who has to end.

budget, readings     how much there is
admission, eviction  the decisions; pure
ledger, pressure     carry them out
learned              what engines really took, for the next time
"""

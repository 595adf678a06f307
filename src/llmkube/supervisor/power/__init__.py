"""Power of this host and its services: watts, joules, joules per token.

    sample                  samples and problems of a power source; pure
    token_energy            joules per token of one engine; pure
    sources, powermetrics   the sources: Linux's counters (RAPL), macOS's powermetrics; selection for this host
    meter                   integrates samples with gaps, attributes energy to services, reports the current state

`meter` reports no watts that are older than `STALE_SECONDS`.
"""

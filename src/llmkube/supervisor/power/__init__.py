"""What this host draws, and for which service: watts, joules, joules per token.

    sample                  what a source of power tells, and how it fails; the Protocol of sources; pure
    token_energy            joules per token of one engine; pure
    sources, powermetrics   the sources: Linux's counters (RAPL), macOS's program; which of them this host has
    meter                   energy of means of power with holes, whose it is, and what is known now

A source that has died leaves no watts behind: `meter` tells none that are older than `STALE_SECONDS`.
"""

"""What this host draws, and for which service: watts, joules, joules per token.

    sample                  what a source of power tells, and how it fails; the Protocol of sources; pure
    integral                energy of means of power with holes between them; pure
    shares                  whose energy it is: a rule about processor time; pure
    token_energy            joules per token of one engine; pure
    powermetrics, rapl      the sources: macOS's program, Linux's counters
    sources                 which of them this host has
    cpu_time                what programs have computed, as the kernel counts it
    meter                   what is known now, from all of these

A source that has died leaves no watts behind: `meter` tells none that are older than `STALE_SECONDS`.
"""

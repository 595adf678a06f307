"""Whose energy it is: what the chip draws while engines work is shared among them by their processor time. Pure.

The rule, for one interval:

* An engine works if its process took at least `WORKING_SHARE` of a core. While no engine works, no energy is anybody's.
* Of a GPU, and of the neural engine, the engines that work share all: no kernel tells GPU time by process without root.
  An engine has to encode each batch on the CPU, so the one that computes more takes more processor time.
* Of all else (cores, package, memory), an engine gets its part of the processor time that *all* programs took: what a
  compiler draws meanwhile is not the model's.

What the host draws at rest is part of it: it belongs to those that work while they work.
"""

from collections.abc import Mapping
from typing import Final

from llmkube.k8s.resource import Key

WORKING_SHARE: Final = 0.01
"""Of one core; below it is what answering health checks costs (`nouns.liveness.ALIVE_CPU_SHARE`)."""

ENGINES_ALONE: Final = frozenset({"gpu", "ane"})
"""The domains that other programs are taken to leave alone."""


def share(
    joules: Mapping[str, float], cpu_seconds: Mapping[Key, float], *, host_cpu_seconds: float, seconds: float
) -> dict[Key, float]:
    """Return the joules of each engine that works; their sum is never more than what was drawn.

    Args:
        joules: What was drawn in the interval, by domain.
        cpu_seconds: Processor time that each engine took in it.
        host_cpu_seconds: Processor time that all programs took in it, the engines' included.
        seconds: How long the interval was.
    """
    working = {key: took for key, took in cpu_seconds.items() if took > 0 and took >= WORKING_SHARE * seconds}
    engines = sum(working.values())
    if not engines:
        return {}
    everyone = max(engines, host_cpu_seconds)
    alone = sum(each for domain, each in joules.items() if domain in ENGINES_ALONE)
    with_others = sum(each for domain, each in joules.items() if domain not in ENGINES_ALONE)
    return {key: took / engines * alone + took / everyone * with_others for key, took in working.items()}

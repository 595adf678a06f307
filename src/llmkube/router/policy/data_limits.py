"""Where the data of a stored conversation may go: its limits hold for every request that goes on with it.

A request that continues a conversation sends its history. It has the data classes of both, and may go only where both
may. What a client leaves out of a later request, a header for instance, opens nothing.
"""

import attrs

from llmkube.router.policy.request_facts import RequestFacts


class NoRegionLeftError(Exception):
    """A conversation and the request that continues it may go to no region in common."""


@attrs.frozen(kw_only=True)
class DataLimits:
    """The limits of some data.

    Attributes:
        classes: Its data classes, in lower case.
        regions: Where it may go, in lower case; None admits everywhere.
    """

    classes: frozenset[str] = frozenset()
    regions: frozenset[str] | None = None


NO_LIMITS = DataLimits()


def limits_of(facts: RequestFacts) -> DataLimits:
    """Return the limits of what a request sends, and of what is answered to it."""
    return DataLimits(classes=facts.classes, regions=facts.regions or None)


def limited(facts: RequestFacts, history: DataLimits) -> RequestFacts:
    """Return the facts of a request that sends a history as well: all classes of both, and the regions of both.

    Args:
        facts: Of the request itself.
        history: Limits of what it continues.

    Raises:
        NoRegionLeftError: No region is in both, and none at all would admit everywhere.
    """
    classes, regions = facts.classes | history.classes, facts.regions
    if history.regions is not None:
        regions = regions & history.regions if regions else history.regions
        if not regions:
            asked, before = (", ".join(sorted(each)) or "none" for each in (facts.regions, history.regions))
            words = f"the conversation's data may go to {before}, this request's to {asked}: no region is in both"
            raise NoRegionLeftError(words)
    return attrs.evolve(facts, classes=classes, regions=regions)

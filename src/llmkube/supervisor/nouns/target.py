"""What should run for one service right now: nothing, and why, or a plan with its weights. Values only."""

import attrs

from llmkube.runtimes.plan import LaunchPlan
from llmkube.weights.estimate.demand import Estimate
from llmkube.weights.formats.shape import Shape
from llmkube.weights.store.blobs import WeightsFile


@attrs.frozen
class Idle:
    """Nothing should run, and why."""

    reason: str
    message: str = ""


@attrs.frozen
class Launch:
    """This plan should run, with these weights.

    Attributes:
        plan: What to run.
        weights: The Model's file.
        estimate: How much memory that will take; None when not known.
        client_keys: The API keys of clients that its engine takes; the plan has their digest, the journal none of them.
        shape: What another context would take can be told from it; not known of what an earlier agent left.
    """

    plan: LaunchPlan
    weights: WeightsFile
    estimate: Estimate | None = None
    client_keys: tuple[str, ...] = attrs.field(default=(), eq=False, repr=False, kw_only=True)
    shape: Shape | None = attrs.field(default=None, eq=False, repr=False)


Target = Idle | Launch

"""What should run for one service right now: nothing, and why, or a plan with its weights. Values only."""

import attrs

from llmkube.runtimes.plan import LaunchPlan
from llmkube.weights.store import WeightsFile


@attrs.frozen
class Idle:
    """Nothing should run, and why."""

    reason: str
    message: str = ""


@attrs.frozen
class Launch:
    """This plan should run, with these weights."""

    plan: LaunchPlan
    weights: WeightsFile


Target = Idle | Launch

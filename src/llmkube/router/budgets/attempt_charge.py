"""What one attempt at a backend is charged, by how it has ended. Pure.

| it ended | it is charged |
|---|---|
| before the backend had the whole request | nothing: no backend computes half of a request |
| with an error (429, 5xx, a redirect), no answer | nothing: providers bill none, an engine has written nothing |
| with an answer, or a part of one, whose tokens the backend has counted | those |
| else: in silence, broken off, cut short, unreadable, not counted | all that was reserved for it |
"""

from llmkube.router.budgets.meter import Took
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Prices


def charge_of(*, is_sent: bool, status: int, usage: Usage | None, prices: Prices | None) -> Took | None:
    """Return what an attempt took; None is all that was reserved for it.

    Args:
        is_sent: Whether the backend has got the whole request.
        status: What it has answered, of an error that came with 200 what that should have been; 0 for no answer.
        usage: The tokens that it has counted; None where it has counted none.
        prices: What its tokens cost; None where that is not known.
    """
    if status >= 300 or not (is_sent or status):
        return Took()
    return None if usage is None else Took(prompt=usage.prompt, answer=usage.completion, prices=prices)

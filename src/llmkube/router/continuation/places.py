"""Which backends may go on with an answer: of those that the request was permitted, engines of the same model. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from llmkube.router.config.routing_config import Backend
from llmkube.router.policy.permits import Permit

_BUILD: Final = re.compile(r"b[0-9]+-\S+")
"""What llama.cpp's server calls its build, as `system_fingerprint`."""


def places(order: Sequence[Permit], broken: Permit) -> tuple[Permit, ...]:
    """Return where an answer may go on, best first: the engines that have the same model, and last the one it broke at.

    Args:
        order: What the decision permits; nothing is added to it.
        broken: Where it broke off.
    """
    ours = broken.backend
    twins = [each for each in order if each.backend.name != ours.name and _is_twin(each.backend, ours)]
    return (*twins, broken)


def goes_on(backend: Backend, fingerprint: object) -> bool:
    """Whether an engine goes on with an answer whose text is given: llama.cpp's, by what is known of it or by its word.

    Args:
        backend: Where it is.
        fingerprint: The `system_fingerprint` that it gives.
    """
    if backend.provider:
        return False
    return bool(backend.model_digest) or (isinstance(fingerprint, str) and _BUILD.fullmatch(fingerprint) is not None)


def _is_twin(one: Backend, other: Backend) -> bool:
    return bool(one.model_digest) and one.model_digest == other.model_digest and not one.provider

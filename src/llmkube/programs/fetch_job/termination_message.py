"""What a pod's fetch leaves as its container's termination message: the facts of the file, or why it failed."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmkube.base.errors import LLMKubeError
from llmkube.k8s.wire.termination_message import cut, to_bytes
from llmkube.supervisor.cluster.status import fetch_reason, gguf_status
from llmkube.weights.formats.shape import GGUFFacts

_TEXT_BYTES: Final = 256  # of each text of the header
_SENTENCE_BYTES: Final = 3000


def told_gguf(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf` with its texts cut to what there is room for."""
    named = gguf_status(facts).items()
    return {name: cut(value, _TEXT_BYTES) if isinstance(value, str) else value for name, value in named}


def told_failure(error: LLMKubeError) -> dict[str, Any]:
    """Return the reason and the sentence of a failure."""
    return {"reason": fetch_reason(error), "message": cut(str(error), _SENTENCE_BYTES)}


def tell(log: Path, message: Mapping[str, Any]) -> None:
    """Write the message; a machine without such a file is no pod, and nothing reads it there."""
    with contextlib.suppress(OSError):
        log.write_bytes(to_bytes(message))

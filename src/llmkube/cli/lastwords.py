"""What a container says at its end, where Kubernetes keeps it: one JSON object of at most 4096 bytes."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from llmkube.base.errors import LLMKubeError
from llmkube.supervisor.status import fetch_reason, gguf_status
from llmkube.weights.gguf import GGUFFacts

TERMINATION_LOG: Final = "/dev/termination-log"
"""Where Kubernetes looks for a container's last words."""

_TEXT_CHARS: Final = 256  # of each text of the header
_SENTENCE_CHARS: Final = 1500


def told_gguf(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf` with its texts cut to what there is room for."""
    named = gguf_status(facts).items()
    return {name: value[:_TEXT_CHARS] if isinstance(value, str) else value for name, value in named}


def told_failure(error: LLMKubeError) -> dict[str, Any]:
    """Return the reason and the sentence of a failure."""
    return {"reason": fetch_reason(error), "message": str(error)[:_SENTENCE_CHARS]}


def tell(log: Path, words: Mapping[str, Any]) -> None:
    """Leave the last words; on a machine without such a place there is nobody to read them."""
    with contextlib.suppress(OSError):
        log.write_text(json.dumps(words, separators=(",", ":")), encoding="utf-8")

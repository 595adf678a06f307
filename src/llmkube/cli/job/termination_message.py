"""What a container says at its end, where Kubernetes keeps it: one JSON object of at most 4096 bytes."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmkube.base.errors import LLMKubeError
from llmkube.supervisor.cluster.status import fetch_reason, gguf_status
from llmkube.weights.formats.gguf import GGUFFacts

TERMINATION_LOG: Final = "/dev/termination-log"
"""Where Kubernetes looks for a container's last words."""

MAX_BYTES: Final = 4096
"""What the kubelet keeps of them; the rest is cut off, and what is left is no JSON."""

_TEXT_BYTES: Final = 256  # of each text of the header
_SENTENCE_BYTES: Final = 3000


def told_gguf(facts: GGUFFacts) -> dict[str, Any]:
    """Return `status.gguf` with its texts cut to what there is room for."""
    named = gguf_status(facts).items()
    return {name: _cut(value, _TEXT_BYTES) if isinstance(value, str) else value for name, value in named}


def told_failure(error: LLMKubeError) -> dict[str, Any]:
    """Return the reason and the sentence of a failure."""
    return {"reason": fetch_reason(error), "message": _cut(str(error), _SENTENCE_BYTES)}


def tell(log: Path, words: Mapping[str, Any]) -> None:
    """Leave the last words; on a machine without such a place there is nobody to read them.

    Of many files with long names the last ones are left out: whoever reads them only shows them.
    """
    files: Sequence[str] = words.get("files", ())
    while files and len(_spoken(words)) > MAX_BYTES:
        files = files[:-1]
        words = {**words, "files": files}
    with contextlib.suppress(OSError):
        log.write_bytes(_spoken(words))


def _spoken(words: object) -> bytes:
    """Return them as JSON in UTF-8: escapes would be three times as long, or six."""
    return json.dumps(words, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _cut(text: str, most_bytes: int) -> str:
    """Return the beginning of a text that takes so many bytes in JSON."""
    taken = 0
    for index, character in enumerate(text):
        taken += len(_spoken(character)) - len('""')
        if taken > most_bytes:
            return text[:index]
    return text

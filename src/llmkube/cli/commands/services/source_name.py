"""Which text is a source of weights, and what a service of it is called when no one has named it. Pure."""

import re
from pathlib import PurePosixPath
from typing import Final

_QUANTIZATION: Final = re.compile(r"[-.](?:UD-)?(?:I?Q\d\w*|F16|BF16|F32|MXFP4)$", re.IGNORECASE)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_MAX: Final = 50
"""Characters of a name that is made; Kubernetes takes more, and a person reads no more."""


def looks_like_source(text: str) -> bool:
    """Whether a text is a path, a URL or a repository, and no name of a service."""
    return "/" in text or "://" in text or text.lower().endswith(".gguf")


def name_for(source: str) -> str:
    """Return the name of a service for a source: its file's or its repository's, as Kubernetes takes it.

    `hf://bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf` is `llama-3.2-1b-instruct`.
    """
    path = source.partition("?")[0].rstrip("/")
    *_, last = re.split(r"/", path.partition("@")[0] if "@" in path.rpartition("/")[2] else path)
    stem = PurePosixPath(last).name.partition(":")[0]
    for suffix in (".gguf", "-GGUF"):
        stem = stem[: -len(suffix)] if stem.lower().endswith(suffix.lower()) else stem
    stem = _QUANTIZATION.sub("", _PART.sub("", stem)).lower()
    return re.sub(r"[^a-z0-9.]+", "-", stem)[:_MAX].strip("-.") or "model"

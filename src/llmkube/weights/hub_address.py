"""A repository of Hugging Face is named in many ways: those that people paste become `hf://ORG/REPO…` here. Pure."""

import re
import urllib.parse
from typing import Final

QUANTIZATION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""What stands behind the colon of `ORG/REPO:Q4_K_M`."""

_HOST: Final = re.compile(r"(?:https://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<path>.+)", re.IGNORECASE)
_NO_MODELS: Final = frozenset({"api", "collections", "datasets", "docs", "models", "papers", "spaces"})


def hub_text(source: str) -> str:
    """Return a page of a repository, or its name with the hub's, as `hf://…`; any other source as it is.

    `https://huggingface.co/ORG/REPO/blob/main/FILE.gguf` is the page that a browser shows of a file. The address that
    it downloads from (`/resolve/`) is a file on a web server like any other, and stays one.
    """
    found = _HOST.fullmatch(source)
    if found is None:
        return source
    steps = [urllib.parse.unquote(step) for step in re.split(r"[?#]", found["path"])[0].strip("/").split("/")]
    match steps:
        case [owner, _, *_] if owner.lower() in _NO_MODELS:
            return source
        case [owner, name]:
            return f"hf://{owner}/{name}"
        case [owner, name, "tree", revision]:
            return f"hf://{owner}/{name}@{revision}"
        case [owner, name, "blob", revision, *path] if path:
            return f"hf://{owner}/{name}/{'/'.join(path)}@{revision}"
        case _:
            return source

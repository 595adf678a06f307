"""What a Model's source means to an engine: a repository that it can fetch by itself, or files that it is handed."""

import urllib.parse
from typing import Final

from llmkube.runtimes.plan import PlanError
from llmkube.weights.errors import SourceError
from llmkube.weights.source import HubRepository, ImageSource, LocalFile, Source, VolumeSource, WebFile, parse_source

SOURCE: Final = "Model.spec.source"

_HUB_HOSTS: Final = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_NO_MODELS: Final = ("datasets", "spaces")


def hub_repository(source: str) -> HubRepository | None:
    """Return the Hugging Face repository that a source names as a whole, a web page's address included; None if none.

    Raises:
        PlanError: The source is malformed.
    """
    parsed = parsed_source(source)
    if isinstance(parsed, HubRepository):
        return parsed
    if not isinstance(parsed, WebFile) or parsed.url.host not in _HUB_HOSTS:
        return None
    steps = [urllib.parse.unquote(step) for step in parsed.url.path.split("/") if step]
    match steps:
        case [owner, name] | [owner, name, "tree", "main"]:
            text = f"{owner}/{name}"
        case [owner, name, "tree", revision]:
            text = f"{owner}/{name}@{revision}"
        case _:
            return None
    page = parsed_source(text)
    return page if isinstance(page, HubRepository) and owner not in _NO_MODELS else None


def is_mounted(source: Source) -> bool:
    """Whether a pod gets the weights by mounting them, with nothing to fetch: a volume, an image, a node's path."""
    return isinstance(source, ImageSource | LocalFile | VolumeSource)


def parsed_source(source: str) -> Source:
    """Return what a source means.

    Raises:
        PlanError: It is malformed.
    """
    try:
        return parse_source(source)
    except SourceError as exc:
        raise PlanError(str(exc).removeprefix("spec.source: "), field=SOURCE) from exc

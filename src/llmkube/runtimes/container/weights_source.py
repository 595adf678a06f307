"""What a Model's source means to an engine: a repository that it can fetch by itself, or files that it is handed."""

from typing import Final

from llmkube.runtimes.plan import PlanError
from llmkube.weights.errors import SourceError
from llmkube.weights.source import HubRepository, ImageSource, LocalFile, Source, VolumeSource, parse_source

SOURCE: Final = "Model.spec.source"


def hub_repository(source: str) -> HubRepository | None:
    """Return the Hugging Face repository that a source names as a whole, a web page's address included; None if none.

    Raises:
        PlanError: The source is malformed, or names one quantization.
    """
    parsed = parsed_source(source)
    if not isinstance(parsed, HubRepository):
        return None
    if parsed.quantization:
        raise PlanError(
            f"this engine takes a repository as a whole, and {parsed.redacted} names one GGUF file of it; leave "
            f":{parsed.quantization} out, or serve it with llama.cpp",
            field=SOURCE,
        )
    return parsed


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

"""Manifests that users of the Go implementation have written: the same fields and flags, with names of our own.

They come from 36 documents in three public repositories. Each shape represents one document, and all that differ from
it in values alone.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import yaml

API: Final = "inference.llmkube.dev/v1alpha1"
Json = dict[str, Any]


@attrs.frozen
class Shape:
    """A Model with its InferenceService, as found in a repository.

    Attributes:
        name: Name of the shape and of both objects.
        model: The Model's spec.
        service: The InferenceService's spec, without `modelRef` and `extraArgs`.
        args: `extraArgs` as typed; NAME is the service's own name.
        says: Text in the resulting command line.
        aliases: Further model ids that clients send.
        refused: The field that this cluster refuses, and the chart's value that allows it; empty if none.
        ignored: Paths of fields that have no effect here, and the reason why they are not needed.
    """

    name: str
    model: Mapping[str, Any]
    service: Mapping[str, Any]
    args: str = ""
    says: str = ""
    aliases: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    refused: str = ""
    ignored: tuple[str, ...] = attrs.field(default=(), converter=tuple)

    def manifests(self) -> Iterator[Json]:
        """Yield both objects."""
        words = [self.name if word == "NAME" else word for word in shlex.split(self.args)]
        service = {"modelRef": self.name, **self.service, **({"extraArgs": words} if words else {})}
        for kind, spec in (("Model", dict(self.model)), ("InferenceService", service)):
            yield {"apiVersion": API, "kind": kind, "metadata": {"name": self.name, "namespace": "ai"}, "spec": spec}


_DATA: Final = yaml.safe_load((Path(__file__).parent / "data" / "shapes.yaml").read_text(encoding="utf-8"))

SHAPES: Final = tuple(Shape(**row) for row in _DATA["shapes"])
ROUTER: Final[Json] = _DATA["router"]
POOL: Final[Json] = _DATA["pool"]

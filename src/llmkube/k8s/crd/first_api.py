"""Convert an InferenceService of the first API (`llmkube.io/v1alpha1`) to a Model and an InferenceService.

The old kind had model and service in one object:

```yaml
apiVersion: llmkube.io/v1alpha1
kind: InferenceService
metadata: {name: qwen3-32b}
spec:
  model: {source: huggingface, name: Qwen/Qwen3-32B-GGUF}
  accelerator: cuda            # also seen below model
  resources: {gpuCount: 2}     # on metal: {gpuLayers: 99}
```

Fields that the current InferenceService has under the same name are copied; a remark names each other field.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import wire_fields

OLD_GROUP: Final = "llmkube.io"
_SERVER_FIELDS: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp"}
)
_COPIED_METADATA: Final = ("name", "namespace", "labels", "annotations")
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_URLS: Final = ("http://", "https://", "hf://", "s3://", "pvc://", "file://", "/")
_HUB: Final = ("huggingface", "hf")

JsonObject = dict[str, Any]


class ConversionError(UserError):
    """The old manifest is of another kind or does not name a model."""


@attrs.frozen
class Conversion:
    """The objects that replace an old manifest.

    Attributes:
        model: The Model.
        service: The InferenceService that refers to it.
        remarks: The dropped fields and points to check, one sentence each, beginning with the old field's path.
    """

    model: JsonObject
    service: JsonObject
    remarks: tuple[str, ...]


def is_old(body: Mapping[str, Any]) -> bool:
    """Return whether an object is of the first API."""
    return str(body.get("apiVersion")).partition("/")[0] == OLD_GROUP


def convert(body: Mapping[str, Any]) -> Conversion:
    """Return the Model and the InferenceService that replace an old InferenceService.

    Raises:
        ConversionError: It is of another kind, or names no model.
    """
    if body.get("kind") != "InferenceService":
        raise ConversionError(f"{body.get('kind')} is not a known kind of {OLD_GROUP}", field="kind")
    old = _Remaining(dict(body))
    for name in ("apiVersion", "kind"):
        old.pop(name)
    meta = {name: value for name in _COPIED_METADATA if (value := old.pop("metadata", name)) is not None}
    meta["annotations"] = {key: value for key, value in meta.get("annotations", {}).items() if key != _LAST_APPLIED}
    meta = {name: value for name, value in meta.items() if value}
    model = {**Model.RESOURCE.type_meta, "metadata": dict(meta), "spec": _model_spec(old)}
    gpus = old.pop("spec", "resources", "gpuCount")
    spec: JsonObject = {"modelRef": meta.get("name", "")}
    if gpus is not None:
        spec["resources"] = {"gpu": gpus}
    _copy_known_fields(old, spec)
    service = {**InferenceService.RESOURCE.type_meta, "metadata": dict(meta), "spec": spec}
    return Conversion(model, service, (*old.remarks, *_dropped(old.rest)))


def _model_spec(old: "_Remaining") -> JsonObject:
    spec: JsonObject = {"source": _source(old), "format": "gguf"}
    in_model, in_spec = old.pop("spec", "model", "accelerator"), old.pop("spec", "accelerator")
    if None not in (in_model, in_spec) and in_model != in_spec:
        old.remark(f"spec.model.accelerator: {in_model} dropped, because spec.accelerator is {in_spec}")
    accelerator = in_model if in_spec is None else in_spec
    hardware: JsonObject = {} if accelerator is None else {"accelerator": accelerator}
    layers = old.pop("spec", "resources", "gpuLayers")
    gpu: JsonObject = {} if layers is None else {"layers": layers}
    if accelerator not in {None, "cpu", "metal"}:
        gpu = {"enabled": True, **gpu}
    if gpu:
        hardware["gpu"] = gpu
    return {**spec, "hardware": hardware} if hardware else spec


def _source(old: "_Remaining") -> str:
    source, name = old.pop("spec", "model", "source"), old.pop("spec", "model", "name")
    if isinstance(source, str) and source.startswith(_URLS):
        if name is not None:
            old.remark(f"spec.model.name: {name!r} dropped, because the source is a URL or path")
        return source
    if source not in {None, *_HUB}:
        raise ConversionError(f"{source!r} is neither {_HUB[0]} nor a URL or path", field="spec.model.source")
    if not isinstance(name, str) or not name:
        raise ConversionError("missing; set the repository, as ORG/REPO", field="spec.model.name")
    old.remark(
        f"spec.model.name: {name} may have several files, and the old manifest does not choose one;"
        " if there are several, set the Model's spec.files"
    )
    if "gguf" not in name.lower():
        old.remark(f"spec.model.name: {name} does not look like gguf; set the Model's spec.format if it is not")
    return f"hf://{name}"


def _copy_known_fields(old: "_Remaining", spec: JsonObject) -> None:
    """Copy the fields that the current InferenceService has under the same name; blocks field by field."""
    rest = old.rest.get("spec")
    if not isinstance(rest, dict):
        return
    for slot in wire_fields(InferenceServiceSpec):
        if slot.key not in rest or slot.key == "modelRef":
            continue
        if not (isinstance(rest[slot.key], dict) and rest[slot.key] and attrs.has(slot.type)):
            spec[slot.key] = old.pop("spec", slot.key)
            continue
        for name in [inner.key for inner in wire_fields(slot.type) if inner.key in rest[slot.key]]:
            block = spec.setdefault(slot.key, {})
            if name not in block:
                block[name] = old.pop("spec", slot.key, name)


def _dropped(rest: Any, path: str = "") -> Iterator[str]:
    """Yield a remark for each leaf that was not converted; one for the status, and one per field of the server."""
    if path == "status":
        yield "status: dropped; the controller sets a new one"
    elif path.startswith("metadata.") and path.count(".") == 1 and path.rpartition(".")[2] in _SERVER_FIELDS:
        yield f"{path}: dropped; the API server sets a new one"
    elif isinstance(rest, dict) and rest:
        for name, value in rest.items():
            yield from _dropped(value, f"{path}.{name}" if path else name)
    elif path:
        yield f"{path}: {rest!r} dropped, because {InferenceService.RESOURCE.api_version} has no such field"


@attrs.define(eq=False)
class _Remaining:
    """The part of an object that is not converted yet, and the remarks about it."""

    rest: JsonObject
    remarks: list[str] = attrs.Factory(list)

    def pop(self, *path: str) -> Any:
        """Remove and return the value at a path; None if there is none."""
        self.rest, value = _without(self.rest, path)
        return value

    def remark(self, sentence: str) -> None:
        self.remarks.append(sentence)


def _without(obj: JsonObject, path: Sequence[str]) -> tuple[JsonObject, Any]:
    """Return an object without the value at a path and without the mappings that this empties; and the value."""
    step, *rest = path
    if step not in obj:
        return obj, None
    others = {name: value for name, value in obj.items() if name != step}
    if not rest:
        return others, obj[step]
    if not isinstance(obj[step], dict):
        return obj, None
    remainder, value = _without(obj[step], rest)
    return ({**obj, step: remainder} if remainder or not obj[step] else others), value

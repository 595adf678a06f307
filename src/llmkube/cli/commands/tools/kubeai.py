"""Convert a Model of KubeAI (`kubeai.org/v1`) to a Model and an InferenceService; `kubeai.toml` has the names."""

from collections.abc import Mapping
from typing import Any, Final

from llmkube.base.package_data import read_table
from llmkube.cli.commands.tools.other_programs import shaped
from llmkube.k8s.crd.first_api import Conversion, ConversionError
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model

_TABLE: Final = read_table(__package__, "kubeai")


def is_kubeai(body: Mapping[str, Any]) -> bool:
    """Return whether an object is one of KubeAI's."""
    return str(body.get("apiVersion")).startswith("kubeai.org/")


def convert_kubeai(body: Mapping[str, Any]) -> Conversion:
    """Return the Model and the InferenceService that replace a Model of KubeAI.

    Raises:
        ConversionError: A field that it cannot do without has no counterpart.
    """
    if body.get("kind") != "Model":
        raise ConversionError(f"{body.get('kind')} is not a known kind of kubeai.org", field="kind")
    old, remarks = shaped(body.get("spec"), _TABLE["shape"], "spec"), list[str]()
    for field, why in _TABLE["refused"].items():
        if old.get(field):
            raise ConversionError(why, field=f"spec.{field}")
    runtime = _known("runtimes", "spec.engine", old.pop("engine", ""))
    modes = [_known("modes", "spec.features", each) for each in old.pop("features", ())]
    if len(modes) > 1:
        raise ConversionError("an engine serves one of them here; write a Model for each", field="spec.features")
    model: dict[str, Any] = {"source": _source(str(old.pop("url", "")), runtime)}
    model["format"] = {"llamacpp": "gguf", "ollama": "gguf"}.get(runtime, "safetensors")
    profile, _, count = str(old.pop("resourceProfile", "cpu:1")).partition(":")
    kind = next((each for each in _TABLE["profiles"] if profile == each or profile.startswith(f"{each}-")), profile)
    accelerator, *vendor = _known("profiles", "spec.resourceProfile", kind)
    model["hardware"] = {"accelerator": accelerator}
    if vendor:
        model["hardware"]["gpu"] = {"enabled": True, "count": _gpu_count(count or "1"), "vendor": vendor[0]}
    remarks.append(f"spec.resourceProfile: {profile} chooses no nodes here; set spec.nodeSelector and spec.resources")
    name = str(body["metadata"]["name"])
    least, most, now = (old.pop(each, None) for each in ("minReplicas", "maxReplicas", "replicas"))
    service: dict[str, Any] = {"modelRef": name, "runtime": runtime, "replicas": max(least or now or 1, 1)}
    if modes and modes[0] != "chat":
        service["mode"] = modes[0]
    if not least and not old.get("autoscalingDisabled"):
        service["activation"] = {"mode": "OnRequest"}
    if most and most > 1:
        service["autoscaling"] = {"minReplicas": least or 0, "maxReplicas": most}
    service["extraArgs"] = list(old.pop("args", ()))
    service["env"] = [{"name": key, "value": value} for key, value in old.pop("env", {}).items()]
    service |= {field: old.pop(field) for field in ("image", "priorityClassName") if field in old}
    if accelerator == "cpu" and runtime in _TABLE["gpu_images"] and "image" not in service:
        remarks.append(f"spec.image: that of {runtime} is for GPUs here; name one for CPUs")
    remarks += [f"spec.{field}: {_TABLE['dropped'].get(field, 'left out; it is not known here')}" for field in old]
    meta = {field: body["metadata"][field] for field in ("name", "namespace", "labels") if field in body["metadata"]}
    kept = {field: value for field, value in service.items() if value != []}
    bodies = ((Model, model), (InferenceService, kept))
    objects = [{**kind.RESOURCE.type_meta, "metadata": dict(meta), "spec": spec} for kind, spec in bodies]
    return Conversion(objects[0], objects[1], tuple(remarks))


def _source(url: str, runtime: str) -> str:
    """Return the source of a URL; the query of a claim's names the file, but for Ollama a model in its own layout."""
    plain, _, query = url.partition("?")
    option, _, value = query.partition("=")
    schemes = ["ollama"] if runtime == "ollama" else _TABLE["schemes"]["known"]
    if (query and option != "model") or plain.partition("://")[0] not in schemes:
        known = ", ".join(schemes)
        raise ConversionError(f"{url!r} has no counterpart; those of {known} have, without options", field="spec.url")
    return f"{plain}/{value}" if query else plain


def _gpu_count(text: str) -> int:
    if not text.isdigit():  # GPUs:nodes
        why = f"{text!r} is not a number of GPUs; write a model over several nodes with spec.multiNode"
        raise ConversionError(why, field="spec.resourceProfile")
    return int(text)


def _known(table: str, field: str, name: str) -> Any:
    if name not in _TABLE[table]:
        raise ConversionError(f"{name!r} has no counterpart; {', '.join(_TABLE[table])} have", field=field)
    return _TABLE[table][name]

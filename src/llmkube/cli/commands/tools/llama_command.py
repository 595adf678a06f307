"""Turn a command line of llama-server into a Model and an InferenceService. Pure.

Only flags with a field or with the verdict that they merely tune the engine are taken over; every other word is named.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base.errors import UserError
from llmkube.cli.view.formats import as_data
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Object
from llmkube.runtimes.arguments import flag_of
from llmkube.runtimes.llama_flags import TRAINED_CONTEXT, read_as_fields, read_extra_args, with_flash_value
from llmkube.runtimes.llama_verdicts import VERDICTS, Kind
from llmkube.weights.source import parse_source

_SILENT: Final = frozenset({"--host", "--port"})
"""LLMKube always chooses them."""
_SOURCES: Final = frozenset({"-m", "-hf", "-hff", "-mu", "-mm"})
"""Flags that name files, by their first spelling."""


@attrs.define
class OtherModel:
    """A model as another program serves it.

    Attributes:
        id: Its name there; "" for the rest of the file.
        words: Arguments of llama-server; None if there is nothing to serve.
        spec: Further fields of the InferenceService.
        remarks: Settings without a counterpart, one sentence each, beginning with the setting.
        objects: Further objects.
        problem: Why it is not converted; "" if it is.
    """

    id: str
    words: Sequence[str] | None = None
    spec: dict[str, Any] = attrs.Factory(dict)
    remarks: list[str] = attrs.Factory(list)
    objects: list[Mapping[str, Any]] = attrs.Factory(list)
    problem: str = ""


def object_name(text: str) -> str:
    """Return a name for objects from another program's name for a model."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:63].strip("-.") or "model"


def objects_of(other: OtherModel, accelerator: str, folder: Path) -> list[Mapping[str, Any]]:
    """Return the Models and the InferenceService of a model, and add to its remarks.

    Args:
        other: The model.
        accelerator: That of the Models.
        folder: Folder of relative paths.

    Raises:
        UserError: It names no file, or one in a form that no Model can have.
    """
    name, args, files, loras = object_name(other.id), list[str](), dict[str, str](), list[str]()
    for flag, values in _flags(other):
        verdict = VERDICTS.get(flag)
        first = verdict.spellings[0] if verdict is not None else ""
        if first in ("--lora", "--lora-scaled"):
            loras += values
        elif first in _SOURCES:
            files[first] = "".join(values)
        elif verdict is None:
            other.remarks.append(f"{flag}: no flag of llama-server that is known here")
        elif verdict.kind in (Kind.OURS, Kind.REFUSED):
            prefix = "set by " if verdict.kind is Kind.OURS else ""
            other.remarks += [] if flag in _SILENT else [f"{flag}: {prefix}{verdict.detail}"]
        else:
            try:
                read_extra_args([flag, *values])
                args += [flag, *values]
            except UserError as error:
                other.remarks.append(f"{flag}: {error}")
    hardware = {"hardware": {"accelerator": accelerator}}
    projector = {"mmproj": str(folder / files["-mm"])} if "-mm" in files else {}
    model = _object(Model, name, {"source": _source(files, folder), **hardware, **projector})
    spec, adapters = {"modelRef": name, **other.spec, "extraArgs": args}, []
    for at, (path, _, scale) in enumerate((each.partition(":") for each in loras), 1):
        adapters.append(_object(Model, f"{name}-lora-{at}", {"source": str(folder / path), **hardware}))
        spec.setdefault("adapters", []).append({"modelRef": f"{name}-lora-{at}", **({"scale": scale} if scale else {})})
    spec["aliases"] = list(dict.fromkeys(each for each in (other.id, *spec.get("aliases", ())) if each != name))
    return [*_with_fields(other, model, _object(InferenceService, name, spec)), *adapters]


def _flags(other: OtherModel) -> Iterator[tuple[str, list[str]]]:
    """Yield flags with their values; report other arguments without their text, which may be a secret."""
    words = list(with_flash_value(other.words or ()))
    while words:
        word = words.pop(0)
        if not (flag := flag_of(word)):
            other.remarks.append("a word that is neither a flag nor the value of one: left out")
        elif "=" in word:
            yield flag, [word.partition("=")[2]]
        else:
            count = VERDICTS[flag].values if flag in VERDICTS else int(bool(words) and not flag_of(words[0]))
            yield flag, words[:count]
            del words[:count]


def _source(files: Mapping[str, str], folder: Path) -> str:
    if path := files.get("-m"):
        source = str(folder / Path(path).expanduser())
    elif repository := files.get("-hf"):
        source = f"hf://{repository.partition(':')[0]}/{files['-hff']}" if "-hff" in files else f"hf://{repository}"
    elif not (source := files.get("-mu", "")):
        raise UserError("names no model: it has none of -m, -hf and --model-url")
    parse_source(source)
    return source


def _object(kind: type[Object], name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {**kind.RESOURCE.type_meta, "metadata": {"name": name}, "spec": spec}


def _with_fields(other: OtherModel, model: dict[str, Any], service: dict[str, Any]) -> list[Mapping[str, Any]]:
    """Return Model and service with arguments moved to their fields, where there is one."""
    moved, with_layers = read_as_fields(decode(InferenceService, service), decode(Model, model))
    if moved.spec.context_size == TRAINED_CONTEXT:  # no field means that
        args = ("-c", "0", *moved.spec.extra_args)
        moved = attrs.evolve(moved, spec=attrs.evolve(moved.spec, context_size=None, extra_args=args))
    body, data = as_data(with_layers), as_data(moved)
    if with_layers.spec.hardware.accelerator == "cpu" and body["spec"]["hardware"].pop("gpu", None):
        other.remarks.append("--n-gpu-layers: the Model is for the CPU; convert with --accelerator to use a GPU")
    return [body, {**data, "spec": {name: value for name, value in data["spec"].items() if value not in ([], ())}}]

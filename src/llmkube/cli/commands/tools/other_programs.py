"""Read the models of other programs: llama-swap's YAML, presets of llama-server (INI), and a store of Ollama.

Sources: config.example.yaml of mostlygeek/llama-swap (0046040); docs/preset.md and tools/server/README.md of
ggml-org/llama.cpp (build 11549); docs/modelfile.mdx of ollama/ollama and the layers of its manifests.
"""

import configparser
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from llmkube.base.errors import UserError
from llmkube.base.package_data import read_table
from llmkube.cli.commands.tools.llama_command import OtherModel, object_name, objects_of
from llmkube.k8s.crd.modelrouter import ModelRouter
from llmkube.k8s.crd.placement import EnvVar
from llmkube.runtimes.llama_verdicts import VERDICTS
from llmkube.runtimes.process.environment import plan_environment

_TABLE: Final = read_table(__package__, "other_programs")
_MACRO: Final = re.compile(r"\$\{([\w.-]+)\}")
_MAX_DEPTH: Final = 9
_ON: Final = ("true", "1", "on", "yes", "enabled")
_NO_COUNTERPART: Final = "has no counterpart"
_LAYER: Final = "application/vnd.ollama.image."
_TYPES: Final = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number"}


PROGRAMS: Final = ("llama-swap", "llama-presets", "ollama")
Converted = tuple[str, Sequence[Mapping[str, Any]], Sequence[str] | None, str]
"""Where objects are from, the objects, what has no counterpart, and why nothing was converted."""


def converted(
    program: str, names: Sequence[str], accelerator: str, read_stdin: Callable[[], str]
) -> Iterator[Converted]:
    """Yield the objects for each model in the files of a program; blocks on the disk.

    Args:
        program: One of `PROGRAMS`.
        names: Files, or stores of Ollama; none for its default store.
        accelerator: That of the Models.
        read_stdin: Reads the file `-`.
    """
    owners: dict[str, str] = {}
    for name in names or (os.environ.get("OLLAMA_MODELS") or str(Path.home() / ".ollama" / "models"),):
        folder = (Path(name) if program == "ollama" else Path(name).parent).absolute()
        try:
            if program == "ollama":
                found = list(read_ollama(folder))
            else:
                text = read_stdin() if name == "-" else Path(name).read_text("utf-8")
                found = list(read_llama_swap(text, os.environ) if program == "llama-swap" else read_presets(text))
        except (UserError, OSError, ValueError) as error:
            yield name, [], None, str(error)
            continue
        for other in found:
            try:
                objects = other.objects if other.words is None else objects_of(other, accelerator, folder)
                if objects and other.id and (owner := owners.setdefault(object_name(other.id), other.id)) != other.id:
                    raise UserError(f"its name here is {object_name(other.id)}, as that of {owner}; rename one of them")
            except UserError as error:
                other.problem, objects = str(error), []
            yield f"{name}, {other.id}" if other.id else name, objects, other.remarks, other.problem


def _remarks(path: str, rest: Iterable[str], reasons: Mapping[str, str]) -> list[str]:
    return [f"{path}{key}: {reason}" for key in rest if (reason := reasons.get(key, _NO_COUNTERPART))]


def shaped(value: Any, shape: Any, path: str = "") -> Any:
    """Return a value whose types match a shape, with empty values in place of null.

    Raises:
        UserError: It has another type. The message names the path but not the value, which may be a secret.
    """
    if shape is None or value is None:
        return value if shape is None else type(shape)()
    if not isinstance(value, type(shape)):
        raise UserError(f"{path or 'its value'}: must be {_TYPES[type(shape)]}")
    if isinstance(shape, list) and shape:
        return [shaped(each, shape[0], f"{path}[{at}]") for at, each in enumerate(value)]
    if isinstance(shape, dict):
        shapes = {str(key): shape.get(str(key), shape.get("*")) for key in value}
        return {str(key): shaped(each, shapes[str(key)], f"{path}.{key}".strip(".")) for key, each in value.items()}
    return value


# -- llama-swap -------------------------------------------------------------------------------------------------------


def read_llama_swap(text: str, environ: Mapping[str, str]) -> Iterator[OtherModel]:
    """Read a config of llama-swap.

    Args:
        text: The YAML.
        environ: Variables for its `${env.NAME}`.

    Raises:
        UserError: It is none.
    """
    try:
        given = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"is no config of llama-swap ({error})") from error
    if not isinstance(given, dict) or "models" not in given:
        raise UserError("is no config of llama-swap: it has no models")
    config = shaped(given, _TABLE["llama_swap"]["shape"]["file"])
    models, macros, ttl = config.pop("models"), config.pop("macros", {}), config.pop("globalTTL", 0)
    groups, peers = config.get("groups", {}).values(), config.pop("peers", {})
    kept = {str(each) for group in groups if group.get("persistent") for each in group.get("members", ())}
    others = _remarks("", config, _TABLE["llama_swap"]["file"])
    for name, peer in peers.items():
        if missing := [key for key in ("proxy", "models") if key not in peer]:
            raise UserError(f"peers.{name}.{missing[0]}: is missing")
        rest = [key for key in peer if key not in ("proxy", "models")]
        others += _remarks(f"peers.{name}.", rest, _TABLE["llama_swap"]["peer"])
    yield OtherModel("", remarks=others, objects=[_router(peers)] if peers else [])
    for name, each in models.items():
        try:
            model = shaped(each, _TABLE["llama_swap"]["shape"]["model"])
            names = {**macros, **model.pop("macros", {}), "MODEL_ID": name, "PORT": "0"}
            yield _swapped(name, model, ttl, pin=name in kept, value=partial(_value, names, environ))
        except (UserError, AttributeError, KeyError, TypeError, ValueError) as error:
            yield OtherModel(name, problem=f"{'' if isinstance(error, UserError) else 'malformed: '}{error}")


def _value(macros: Mapping[str, Any], environ: Mapping[str, str], slot: re.Match[str]) -> str:
    known: Mapping[str, Any] = environ if slot[1].startswith("env.") else macros
    if (key := slot[1].removeprefix("env.")) not in known:
        raise UserError(f"{slot[0]} is not defined")
    return str(known[key])


def _swapped(
    name: str, model: dict[str, Any], ttl: int, *, pin: bool, value: Callable[[re.Match[str]], str]
) -> OtherModel:
    other, cmd = OtherModel(name), str(model.pop("cmd", ""))
    for _ in range(_MAX_DEPTH):  # macros may contain others
        cmd = _MACRO.sub(value, cmd)
    lines = [line for line in cmd.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
    program, *other.words = shlex.split("\n".join(lines)) or [""]
    if not Path(program).name.startswith("llama-server"):
        raise UserError(f"cmd runs {Path(program).name or 'nothing'}; only commands of llama-server are converted")
    own = model.pop("ttl", -1)
    seconds = ttl if own < 0 else own
    other.spec["activation"] = {"mode": "OnRequest"} | ({"idleTimeout": f"{seconds}s"} if seconds else {})
    if pin:
        other.spec["activation"] = {"mode": "OnRequest", "pin": True}
    other.spec["aliases"] = [each["id"] if isinstance(each, dict) else each for each in model.pop("aliases", ())]
    for each in model.pop("env", ()):
        variable, _, text = _MACRO.sub(value, each).partition("=")
        try:
            plan_environment([EnvVar(name=variable, value=text)])
        except UserError as error:
            other.remarks.append(str(error).removeprefix("spec."))
        else:
            other.spec.setdefault("env", []).append({"name": variable, "value": text})
    filters = model.pop("filters", {})
    shared = filters.pop("setParams", {})
    presets = {_MACRO.sub(value, key): {**shared, **each} for key, each in filters.pop("setParamsByID", {}).items()}
    presets = (dict.fromkeys((object_name(name), name), shared) if shared else {}) | presets
    if presets:
        other.remarks.append("filters: here they apply to requests that do not set the parameter themselves")
        other.spec["presets"] = [{"name": key, **_preset(key, each, other)} for key, each in presets.items()]
    other.remarks += _remarks("filters.", filters, {}) + _remarks("", model, _TABLE["llama_swap"]["model"])
    return other


def _preset(name: str, parameters: Mapping[str, Any], other: OtherModel) -> dict[str, Any]:
    known, given = _TABLE["request_parameters"], dict(parameters)
    thinking = given.pop("chat_template_kwargs", {}).get("enable_thinking")
    other.remarks += _remarks(f"filters, {name}, ", [key for key in given if key not in known], {})
    fields = {
        known[key]: value if isinstance(value, int) else str(value) for key, value in given.items() if key in known
    }
    return fields | ({} if thinking is None else {"thinking": thinking})


def _router(peers: Mapping[str, Any]) -> dict[str, Any]:
    """Return a router with a backend for each model of the peers."""
    backends, rules = [], []
    for peer, model in [(name, model) for name in peers for model in peers[name]["models"]]:
        name = object_name(f"{peer}-{model}".replace(".", "-"))
        external = {"provider": "openai", "model": model, "url": f"{peers[peer]['proxy'].rstrip('/')}/v1"}
        secret = {"credentialsSecretRef": {"name": object_name(peer)}} if "apiKey" in peers[peer] else {}
        backends.append({"name": name, "external": external | secret})
        rules.append({"name": name, "match": {"models": [model]}, "route": {"backends": [name]}})
    spec = {"backends": backends, "rules": rules}
    return {**ModelRouter.RESOURCE.type_meta, "metadata": {"name": "peers"}, "spec": spec}


# -- presets of llama-server ------------------------------------------------------------------------------------------


def read_presets(text: str) -> Iterator[OtherModel]:
    """Read a file of `llama-server --models-preset`.

    Raises:
        UserError: It is no INI file.
    """
    parser = configparser.RawConfigParser(default_section="*", delimiters=("=",), comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(f"[*]\n{text}")
    except configparser.Error as error:
        raise UserError(f"is no file of presets: {error.message}") from error
    for section in parser.sections():
        other, words = OtherModel(section), list[str]()
        for key, value in parser.items(section):
            name = key.removeprefix("LLAMA_ARG_").lower().replace("_", "-") if key.startswith("LLAMA_ARG_") else key
            flag = next((each for each in (f"--{name}", f"-{name}") if each in VERDICTS), f"--{name}")
            if name in _TABLE["llama_presets"]:
                other.remarks += _remarks("", [name], _TABLE["llama_presets"])
            elif flag not in VERDICTS or VERDICTS[flag].values:
                words += [flag, value]
            elif value.lower() in _ON:
                words.append(flag)
            else:
                opposite = (f"--no-{name}", f"--{name.removeprefix('no-')}")
                words += [each for each in opposite if each in VERDICTS and each != flag][:1]
        first = {VERDICTS[each].spellings[0] for each in words if each in VERDICTS}
        other.words = words if first & {"-m", "-hf", "-mu"} else ["-hf", section, *words]
        yield other


# -- Ollama -----------------------------------------------------------------------------------------------------------


def read_ollama(store: Path) -> Iterator[OtherModel]:
    """Read the models of an Ollama, whose files are used in place; blocks on the disk.

    Raises:
        UserError: The folder is no store of Ollama.
    """
    manifests = sorted(each for each in (store / "manifests").rglob("*") if each.is_file() and each.name[0] != ".")
    if not manifests:
        raise UserError("has no manifests; name Ollama's folder of models, such as ~/.ollama/models")
    yield OtherModel("", remarks=[f"to use the files, start llmkube up with --allow-local-sources {store / 'blobs'}"])
    for manifest in manifests:
        _, *spaces, name, tag = manifest.relative_to(store / "manifests").parts
        other = OtherModel("/".join([*(each for each in spaces if each != "library"), f"{name}:{tag}"]))
        try:
            _read_manifest(other, json.loads(manifest.read_bytes()), store / "blobs")
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            other = OtherModel(other.id, problem=f"{manifest} cannot be read ({error!r}); pull the model again")
        yield other


def _read_manifest(other: OtherModel, manifest: Mapping[str, Any], blobs: Path) -> None:
    """Add the layers of a manifest to a model; blocks on the disk."""
    words, short = list[str](), other.id.removesuffix(":latest")
    for layer in manifest.get("layers", ()):
        kind, blob = layer["mediaType"].removeprefix(_LAYER), blobs / layer["digest"].replace(":", "-")
        if flag := {"model": "-m", "projector": "-mm", "adapter": "--lora"}.get(kind):
            words += [flag, str(blob)]
        elif kind == "params":
            known, given = _TABLE["ollama_parameters"], json.loads(blob.read_bytes())
            other.remarks += _remarks("parameter ", [key for key in given if key not in known], _TABLE["ollama_rest"])
            words += [word for key in given if key in known for word in (known[key], f"{given[key]}")]
        elif kind == "system":
            named = dict.fromkeys((object_name(other.id), other.id, short))
            other.spec["presets"] = [{"name": each, "system": blob.read_text("utf-8")} for each in named]
        else:
            other.remarks += _remarks("", [kind], _TABLE["ollama_layers"])
    other.words, other.spec = words, {**other.spec, "aliases": [short], "activation": {"mode": "OnRequest"}}

"""`llmkube crds`: print the CRDs, or their reference docs/reference/crds.md."""

import inspect
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click

from llmkube.base.errors import UserError
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import KINDS, all_crds, crds_yaml
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import DECIMAL, DURATION, QUANTITY
from llmkube.k8s.crd.model import Model
from llmkube.k8s.fields import REQUIRED, IntOrString, Rule, SchemaFacts, WireField, wire_fields
from llmkube.programs.bundled_engine.llama_params import FLAGS, Switch
from llmkube.programs.options import command
from llmkube.runtimes.container.builder import Runtime
from llmkube.runtimes.llama_fields import draft_of
from llmkube.runtimes.plan import EngineInfo
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import plan_for
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.store.blobs import WeightsFile


@command("crds")
@click.option("--docs", is_flag=True, help="Print the reference of all fields instead, as Markdown.")
def crds(docs: bool) -> None:
    """Print the CustomResourceDefinitions, including the runtimes of installed plug-ins, or their reference.

    To install them: llmkube crds | kubectl apply --server-side -f -
    """
    from llmkube.runtimes.container.plugins import extend_crds, find_installed  # noqa: PLC0415 - slow: scans all installed packages

    found = find_installed()
    for problem in found.problems:
        click.echo(f"warning: {problem}", err=True)
    if docs:
        click.echo(reference(found.runtimes), nl=False)
        return
    click.echo(crds_yaml(extend_crds(all_crds(), found.runtimes)).rstrip("\n"))


_HEAD: Final = """\
# Custom resources

All fields of the kinds of `inference.llmkube.dev/v1alpha1`. `make manifests` generates this page from the classes in
`src/llmkube/k8s/crd`. `kubectl explain inferenceservice.spec` shows the same descriptions.

* **Type**: a *quantity* is an amount in the format of Kubernetes (`500m`, `24Gi`), a *duration* a time span (`1m30s`),
  a *decimal* a number as a string. A type *as in a pod* has the fields of the pod's type of that name.
* **Hosts**: fields that take effect where a host agent runs llama.cpp (the engine of the `llama` extra). If a service
  sets another field there, its condition `SpecHonoured=False` names the field.
* Rules are checked by the API server, including the embedded one, when an object is applied.
"""
_TYPE_NAMES: Final[Mapping[Any, str]] = {
    str: "text",
    bool: "true or false",
    float: "number",
    IntOrString: "number or name",
}
_PATTERNS: Final = {QUANTITY: "quantity", DURATION: "duration", DECIMAL: "decimal"}
_MARK: Final = "yes"

# Values that a planner can use, for fields where the first value that the schema allows is not usable
_SAMPLES: Final[Mapping[str, Any]] = {
    "spec.modelRef": "m",
    "spec.runtime": "llama-server",
    "spec.endpoint.path": "/v1/embeddings",
    "spec.env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
    "spec.extraArgs": ["--threads", "1"],
    "Model.spec.source": "/m.gguf",
    "Model.spec.format": "gguf",
    "Model.spec.hardware.accelerator": "metal",
}

# Other fields without which a field has no effect
_COMPANIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "spec.reasoningBudgetMessage": {"reasoningBudget": 1},
    "Model.spec.mmproj": {"files": ["m.gguf"]},
}


def reference(plugins: Iterable[Runtime] = ()) -> str:
    """Return the page, with the options of runtimes from plug-ins."""
    own = (section for kind in KINDS for section in _kind(kind))
    return "\n".join([_HEAD, *own, *(section for runtime in plugins for section in _plugin(runtime))])


# -- the page ---------------------------------------------------------------------------------------------------------


def _kind(kind: Any) -> Iterator[str]:
    resource = kind.RESOURCE
    yield f"## {resource.kind}\n"
    yield f"{inspect.cleandoc(kind.__doc__)} `kubectl get {resource.plural}`, short `{resource.short_names[0]}`.\n"
    parts = {slot.key: slot.type for slot in wire_fields(kind)}
    planned = kind in {Model, InferenceService}
    if not planned:
        page = "routing.md" if resource.kind == "ModelRouter" else "../guides/cluster.md"
        yield f"[Behaviour and limits]({page})\n"
    prefix = "Model.spec" if kind is Model else "spec"
    yield from _table(parts["spec"], "spec", prefix if planned else "")
    rules = list(_rules(parts["spec"], "spec"))
    if rules:
        yield "\n| field | rule |\n|---|---|"
        yield from (f"| `{path}` | {_cell(rule.message)} |" for path, rule in rules)
    yield ""
    yield from _table(parts["status"], "status", "")
    yield ""


def _plugin(runtime: Runtime) -> Iterator[str]:
    yield f"## Runtime {runtime.name}\n"
    yield f"A plug-in: `spec.runtime: {runtime.name}` of an InferenceService.\n"
    if runtime.config is not None:
        yield from _table(runtime.config, f"spec.{runtime.config_key}", "")
        yield ""


def _table(cls: Any, path: str, planned: str) -> Iterator[str]:
    columns = ["field", "type", "default", "bounds", "meaning", *(["hosts"] if planned else [])]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for below, slot, listed in _walk(cls, path):
        row = [f"`{below}`", _type(slot), _default(slot), _bounds(slot.facts), slot.facts.description]
        if planned:
            is_asked = not (attrs.has(slot.type) or listed)
            row.append(_MARK if is_asked and honoured_on_hosts(planned + below.removeprefix("spec")) else "")
        yield f"| {' | '.join(map(_cell, row))} |"


def _walk(cls: Any, path: str, *, listed: bool = False) -> Iterator[tuple[str, WireField, bool]]:
    """Yield every field, and whether it is within the items of a list, which takes effect as a whole."""
    for slot in wire_fields(cls):
        below = f"{path}.{slot.key}"
        yield below, slot, listed
        item = _item(slot.type)
        if attrs.has(item) and item.__name__ != "Condition":
            is_list = item is not slot.type
            yield from _walk(item, below + ("[]" if is_list else ""), listed=listed or is_list)


def _item(annotation: Any) -> Any:
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else annotation


def _rules(cls: Any, path: str) -> Iterator[tuple[str, Rule]]:
    yield from ((path, rule) for rule in getattr(cls, "RULES", ()))
    for slot in wire_fields(cls):
        below = f"{path}.{slot.key}"
        yield from ((below, rule) for rule in slot.facts.rules)
        item = _item(slot.type)
        if attrs.has(item):
            yield from _rules(item, below if item is slot.type else f"{below}[]")


def _type(slot: WireField) -> str:
    annotation, facts = slot.type, slot.facts
    if facts.pod_part:
        return f"{'list of ' if _item(annotation) is not annotation else ''}{facts.pod_part}, as in a pod"
    if _item(annotation) is not annotation:
        inner = _item(annotation)
        return f"list of {'objects' if attrs.has(inner) else 'texts'}"
    if attrs.has(annotation):
        return "object"
    if annotation is int:
        return facts.format or "int32"
    if annotation is str:
        return "one of" if facts.enum else _PATTERNS.get(facts.pattern, "time" if facts.format else "text")
    return _TYPE_NAMES.get(annotation, "texts by name")


def _default(slot: WireField) -> str:
    if slot.facts.required:
        return "required"
    if slot.default in (None, (), "", REQUIRED) or isinstance(slot.default, Mapping) or attrs.has(type(slot.default)):
        return ""
    return f"`{str(slot.default).lower() if isinstance(slot.default, bool) else slot.default}`"


def _bounds(facts: SchemaFacts) -> str:
    bounds = [", ".join(f"`{value}`" for value in facts.enum)] if facts.enum else []
    bounds += _range("", facts.minimum, facts.maximum, above=facts.exclusive_minimum)
    bounds += _range(" characters", facts.min_length, facts.max_length)
    bounds += _range(" items", facts.min_items, facts.max_items)
    if facts.list_map_keys:
        bounds.append(f"each {' and '.join(facts.list_map_keys)} once")
    if facts.pattern and facts.pattern not in _PATTERNS:
        bounds.append(f"`{facts.pattern}`")
    return "; ".join(bounds)


def _range(unit: str, lowest: float | None, highest: float | None, *, above: bool = False) -> list[str]:
    least = "" if lowest is None else f"above {lowest}" if above else f"from {lowest}"
    most = "" if highest is None else f"to {highest}"
    return [f"{' '.join(filter(None, (least, most)))}{unit}"] if least or most else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- fields with effect on hosts --------------------------------------------------------------------------------------


def honoured_on_hosts(path: str) -> bool:
    """Whether a field takes effect for llama.cpp on a host, according to its planner; a refused field does not.

    Args:
        path: As in conditions: `spec.contextSize`, `Model.spec.hardware.memoryBudget`.
    """
    owner: Any = Model if path.startswith("Model.") else InferenceService
    steps = path.removeprefix("Model.").split(".")[1:]
    spec: dict[Any, Mapping[str, Any]] = {
        Model: {"source": "/m.gguf", "hardware": {"accelerator": "metal"}},
        InferenceService: {"modelRef": "m"},
    }
    root = next(slot.type for slot in wire_fields(owner) if slot.key == "spec")
    spec[owner] = _merged({**spec[owner], **_COMPANIONS.get(path, {})}, _block_with(root, steps, path))
    model, service = (_object(kind, spec[kind]) for kind in (Model, InferenceService))
    facts = GGUFFacts(architecture="llama", file_version=3, tensor_count=1, size_bytes=1)
    try:
        weights = WeightsFile(Path("/m"), 1, None, "i")
        draft = weights if draft_of(service.spec) else None
        plan = plan_for(PlanInputs(service, model, weights, facts, _engine(), alias="m", draft=draft))
    except UserError:
        return False
    return path not in plan.not_honoured


def _engine() -> EngineInfo:
    flags = [flag for section in FLAGS.values() for flag in section]
    names = frozenset(name for flag in flags for name in flag.names.split())
    switches = frozenset(name for flag in flags if isinstance(flag, Switch) for name in flag.names.split())
    return EngineInfo("llmkube-llama-server", "bundled", names, switches)


def _object(kind: Any, spec: Mapping[str, Any]) -> Any:
    return decode(kind, {"metadata": {"name": "m", "namespace": "default"}, "spec": spec})


def _block_with(cls: Any, steps: list[str], path: str) -> dict[str, Any]:
    """Return an object with a value at the end of the path, and with its required fields."""
    step, *rest = steps
    block = {slot.key: _sample(slot, "") for slot in wire_fields(cls) if slot.facts.required and slot.key != step}
    slot = next(slot for slot in wire_fields(cls) if slot.key == step)
    return {**block, step: _block_with(slot.type, rest, path) if rest else _sample(slot, path)}


def _sample(slot: WireField, path: str) -> Any:
    """Return a value that differs from the default."""
    if path in _SAMPLES:
        return _SAMPLES[path]
    facts, annotation = slot.facts, slot.type
    if facts.enum:
        return next(value for value in facts.enum if value != slot.default)
    if annotation is bool:
        return not slot.default
    if annotation is int:
        least = max(1, int(facts.minimum or 0))
        return least + 1 if least == slot.default else least
    if annotation is float:
        return 0.5
    if annotation is str:
        return {"quantity": "1", "duration": "1s", "decimal": "1"}.get(_PATTERNS.get(facts.pattern, ""), "x")
    item = _item(annotation)
    if item is not annotation:
        return [_block(item)] if attrs.has(item) else [{}] if facts.pod_part else ["x"]
    return _block(annotation) if attrs.has(annotation) else {} if facts.pod_part else {"a": "b"}


def _block(cls: Any) -> dict[str, Any]:
    return {slot.key: _sample(slot, "") for slot in wire_fields(cls) if slot.facts.required}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two objects; the second takes precedence."""
    both = {**base, **more}
    for key in base.keys() & more.keys():
        if isinstance(base[key], Mapping) and isinstance(more[key], Mapping):
            both[key] = _merged(base[key], more[key])
    return both

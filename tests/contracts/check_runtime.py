"""The contract of runtimes that run in pods, built-in or from plug-ins: `check_runtime(name)`.

A plan is pure and stable; its port is one number; its command line shows no secret; and every field of the objects is
either honoured, and then it changes the plan, or reported, and then it changes nothing.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs
from hypothesis import HealthCheck, given, settings

from contracts.drawn import Schema, values_of
from lengths import EXAMPLES
from llmkube.base.errors import UserError
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.container_plan import PORT_NAME, ContainerPlan, MountPaths
from llmkube.runtimes.container.plugins import extend_crds, find_installed
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for

Spec = Mapping[str, Any]
Outcome = ContainerPlan | PlanError

PLACES: Final = MountPaths(model="/models/m", folder="/models", draft="/drafts/d", cache="/cache")
SECRET: Final = "hush-hush"

# Read before the plan or outside of it: names, the pair of engine and format, the weights' own identity
ELSEWHERE: Final = frozenset(
    {
        *("spec.modelRef", "spec.runtime", "spec.mode", "spec.skipModelInit"),
        *("Model.spec.source", "Model.spec.format", "Model.spec.quantization", "Model.spec.sha256"),
        *("Model.spec.files", "Model.spec.sourceSecretRef.name", "Model.spec.hardware.accelerator"),
        *("Model.spec.hardware.gpu.enabled", "spec.resources.gpuSharing.mode"),
        "spec.activation.mode",  # Always is what pods do anyway
        "Model.spec.hardware.gpu.runtime",  # chooses among our images, where the user names none
    }
)

# Values that say something, where a schema alone does not tell
SAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "spec.modelRef": ("other",),
    "spec.endpoint.path": ("/v1/completions",),
    "spec.env": ([{"name": "A", "value": "b"}],),
    "spec.extraArgs": (["--unknown-to-us", "1"], ["--other=2"]),
    "spec.probeOverrides.startup": ({"failureThreshold": 7},),
    "spec.probeOverrides.liveness": ({"tcpSocket": {"port": 1}},),
    "spec.probeOverrides.readiness": ({"periodSeconds": 7},),
    "spec.autoscaling.metrics": ([{"type": "Resource", "name": "cpu", "targetAverageUtilization": 50}],),
    "spec.resources.gpuSharing.profile": ("1g.24gb",),
    "Model.spec.source": ("hf://a/b@v2", "pvc://claim/m"),
    "Model.spec.files": (["a.gguf", "b.gguf"],),
    "Model.spec.mmproj": ("p.gguf",),
    "Model.spec.hardware.gpu.sharding.layerSplit": (["0-2", "3-9"],),
    "Model.spec.hardware.gpu.resourceName": ("example.com/gpu",),
    "Model.spec.hardware.gpu.tolerationKey": ("example.com/taint",),
    "Model.spec.hardware.gpu.resourceClaims": ([{"name": "g", "resourceClaimName": "c"}],),
}

# Worlds in which a field can mean something
_GPUS: Final = {"resources": {"gpu": 2}}
_BASES: Final[tuple[tuple[Spec, Spec], ...]] = (
    ({}, {}),
    (_GPUS, {"hardware": {"accelerator": "cuda", "gpu": {"sharding": {}}}}),
    (_GPUS, {"hardware": {"accelerator": "rocm", "gpu": {"vendor": "amd"}}}),
    ({"cacheTypeV": "q8_0", "reasoningBudget": 1}, {"files": ["a.gguf", "2", "3"]}),
    ({"cacheTypeK": "q8_0", "skipModelInit": True}, {}),
    ({"speculativeDecoding": {"type": "draft-mtp"}, "ropeScaling": {"type": "yarn"}}, {"files": ["a.gguf"]}),
    (
        {
            "vllmConfig": {"speculative": {"enabled": True, "model": "d"}},
            "sglangConfig": {"speculative": {"enabled": True, "algorithm": "EAGLE"}},
        },
        {},
    ),
)


def check_runtime(name: str, *, source: str = "org/repo", weights_format: str = "gguf", **base: Any) -> None:
    """Check the whole contract of a runtime.

    Args:
        name: The value of `spec.runtime`.
        source: A Model's source that it can serve.
        weights_format: A format that it reads.
        **base: Fields that a service of this runtime requires, such as `image`.

    Raises:
        AssertionError: It breaks a promise, which the message names.
    """
    lab = Lab(name, {"image": "example.com/engine:1", **base}, {"source": source, "format": weights_format})
    for check in (_pure, _port, _secrets, _unknown_words, _not_of_the_plan, _fields, _hostile):
        check(lab)


@attrs.frozen
class Lab:
    """One runtime under test, and the least that it needs."""

    name: str
    service: Spec
    model: Spec

    def plan(self, service: Spec, model: Spec, meta: Spec | None = None) -> ContainerPlan:
        """Plan with more than the least.

        Raises:
            PlanError: The runtime refuses it.
        """
        owner = {"name": "chat", "namespace": "ns", **(meta or {})}
        spec = merged(merged({"modelRef": "m", "runtime": self.name}, self.service), service)
        weights = {"metadata": {"name": "m", "namespace": "ns"}, "spec": merged(self.model, model)}
        return container_plan_for(decode(InferenceService, {"metadata": owner, "spec": spec}), decode(Model, weights))

    def outcome(self, service: Spec, model: Spec) -> Outcome:
        """Return the plan, or why there is none."""
        try:
            return self.plan(service, model)
        except PlanError as error:
            refusal = error
        assert refusal.field.startswith(("spec.", "Model.spec.")), f"{self.name}: {refusal!r} names no field"
        return refusal


def words(plan: ContainerPlan) -> str:
    """Return the whole command, as one would read it in a process list."""
    return " ".join([*plan.render_words((*plan.command, *plan.args), PLACES), *plan.render_hook(PLACES)])


def merged(base: Spec, more: Spec) -> dict[str, Any]:
    """Return both as one; where both speak, the second holds."""
    both = {**base, **more}
    for key in base.keys() & more.keys():
        if isinstance(base[key], Mapping) and isinstance(more[key], Mapping):
            both[key] = merged(base[key], more[key])
    return both


# -- the promises -----------------------------------------------------------------------------------------------------


def _pure(lab: Lab) -> None:
    first, second = lab.plan({}, {}), lab.plan({}, {})
    assert first == second, f"{lab.name}: equal objects make equal plans"
    assert first.digest == second.digest, f"{lab.name}: equal plans have equal digests"
    assert first.container_name, f"{lab.name}: the container has a name"
    assert first.image == "example.com/engine:1", f"{lab.name}: the user's image is taken as it is"
    metric = first.hpa_metric
    assert metric is None or first.metrics_port_name, f"{lab.name}: what is scaled on can be scraped"


def _port(lab: Lab) -> None:
    usual, other = lab.plan({}, {}), lab.plan({"containerPort": 23456}, {})
    assert other.port == 23456, f"{lab.name}: containerPort is the port"

    def text(plan: ContainerPlan) -> str:
        return f"{words(plan)} {json.dumps(plan.render_env(PLACES))}"

    if str(usual.port) in text(usual):  # a generic container's own words are the user's business
        assert "23456" in text(other), f"{lab.name}: the engine gets its port"
    assert str(usual.port) not in text(other), f"{lab.name}: the engine gets no other port"
    for probe in attrs.astuple(other.probes, recurse=False):
        handler = probe.manifest().get("httpGet") or probe.manifest().get("tcpSocket") or {"port": PORT_NAME}
        assert handler["port"] in (PORT_NAME, other.port), f"{lab.name}: probes ask at the container's port"
    assert len({PORT_NAME, *(port for port, _ in other.extra_ports)}) == 1 + len(other.extra_ports)


def _secrets(lab: Lab) -> None:
    ref = {"name": SECRET, "key": SECRET}
    configs = ("vllmConfig", "sglangConfig", "tgiConfig", "personaPlexConfig")
    plan = lab.plan({config: {"hfTokenSecretRef": ref} for config in configs}, {"sourceSecretRef": {"name": SECRET}})
    assert SECRET not in words(plan), f"{lab.name}: nothing of a Secret is on the command line"
    for variable in plan.env:
        assert SECRET not in variable.value, f"{lab.name}: a Secret is referred to, not read"
    refused = lab.outcome({"extraArgs": ["--api-key", SECRET]}, {})
    if isinstance(refused, ContainerPlan):
        assert SECRET not in words(refused), f"{lab.name}: a key on the command line is refused"
        assert "spec.extraArgs" in refused.not_honoured
    else:
        assert refused.field == "spec.extraArgs"
        assert SECRET not in str(refused)


def _unknown_words(lab: Lab) -> None:
    plan = lab.plan({"extraArgs": ["--unknown-to-us=1", "x"]}, {})
    assert "spec.extraArgs" in plan.not_honoured or words(plan).endswith("--unknown-to-us=1 x"), (
        f"{lab.name}: words that we do not know reach the engine, or are reported"
    )


def _not_of_the_plan(lab: Lab) -> None:
    usual = lab.plan({}, {}).digest
    others = (
        lab.plan({"replicas": 3}, {}),
        lab.plan({"podLabels": {"a": "b"}, "podAnnotations": {"c": "d"}}, {}),
        lab.plan({"priority": "high", "nodeSelector": {"a": "b"}}, {}),
        lab.plan({}, {}, {"labels": {"a": "b"}, "annotations": {"c": "d"}, "resourceVersion": "7", "uid": "u"}),
    )
    assert {plan.digest for plan in others} == {usual}, f"{lab.name}: what is no engine's business changes no engine"


def _fields(lab: Lab) -> None:
    schemas = crd_specs()
    fields = (*_leaves(schemas["InferenceService"], "spec"), *_leaves(schemas["Model"], "Model.spec"))

    @functools.cache  # most fields are tried on the same few
    def usual(specs: str) -> tuple[Outcome, str]:
        outcome = lab.outcome(*json.loads(specs))
        return outcome, outcome.digest if isinstance(outcome, ContainerPlan) else ""

    for field in fields:
        verdicts = {_tried(lab, usual, base, field, sample) for base in _BASES for sample in field.samples}
        has_effect = True in verdicts or False not in verdicts or field.path in ELSEWHERE
        assert has_effect, f"{lab.name}: {field.path} is honoured and changes nothing"


def _tried(
    lab: Lab, usual: Callable[[str], tuple[Outcome, str]], base: tuple[Spec, Spec], field: "Field", sample: Any
) -> bool | None:
    """Whether a value has changed the plan; None if it was reported to have no effect, or cannot be tried here."""

    def specs(value: Spec) -> list[Spec]:
        at = field.path.startswith("Model.")
        return [merged(merged(field.needed, spec), value) if at == index else spec for index, spec in enumerate(base)]

    (without, digest), plan = usual(json.dumps(specs({}))), lab.outcome(*specs(field.nested(sample)))
    if isinstance(without, PlanError):
        return None
    if isinstance(plan, PlanError):
        return True  # refusing is one way of hearing
    alike = attrs.evolve(plan, not_honoured=without.not_honoured) == without
    changed = not alike and plan.digest != digest  # alike are most, and a digest is dear
    if field.path in plan.not_honoured:
        is_set = any(field.sets(spec) for spec in (lab.service, lab.model, *specs({})))  # an override is dropped
        assert is_set or not changed, f"{lab.name}: {field.path}={sample!r} is reported, and has an effect"
        return None
    return changed


def _hostile(lab: Lab) -> None:
    schemas = crd_specs()

    @settings(max_examples=EXAMPLES // 3, database=None, suppress_health_check=list(HealthCheck))
    @given(values_of(schemas["InferenceService"]), values_of(schemas["Model"]))
    def plans_or_refuses(service: Any, model: Any) -> None:
        try:
            outcome = lab.outcome({**service, "runtime": lab.name}, model)
        except UserError:  # the codec's: an API server lets nothing of the kind through
            return
        if isinstance(outcome, ContainerPlan):
            assert all(isinstance(word, str) for word in words(outcome).split())
            names = [variable["name"] for variable in outcome.render_env(PLACES)]
            assert len(set(names)) == len(names), f"{lab.name}: a variable is set once"
            assert outcome.image
            json.dumps([outcome.digest, [probe.manifest() for probe in attrs.astuple(outcome.probes, recurse=False)]])

    plans_or_refuses()


# -- fields and values ------------------------------------------------------------------------------------------------


def crd_specs() -> dict[str, Schema]:
    """Return the schema of each kind's spec, with what installed plug-ins add."""
    crds = extend_crds(all_crds(), find_installed().runtimes)
    return {
        crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for crd in crds
    }


@attrs.frozen
class Field:
    """A field that a planner can report, with values that the schema admits, and the fields that it requires."""

    path: str
    samples: tuple[Any, ...]
    needed: Spec

    @property
    def steps(self) -> list[str]:
        """The way to it from the spec."""
        return self.path.removeprefix("Model.").split(".")[1:]

    def nested(self, value: Any) -> Any:
        """Return a spec that says this and nothing else."""
        for step in reversed(self.steps):
            value = {step: value}
        return value

    def sets(self, spec: Any) -> bool:
        """Whether a spec says something here."""
        for step in self.steps:
            if not isinstance(spec, Mapping) or step not in spec:
                return False
            spec = spec[step]
        return True


def _leaves(schema: Schema, path: str, needed: Spec | None = None) -> Iterator[Field]:
    for name, below in schema["properties"].items():
        at = f"{path}.{name}"
        if at not in SAMPLES and _is_block(below):
            block = Field(at, (), {}).nested(next(_samples(below)))
            yield from _leaves(below, at, merged(needed or {}, block))
        elif at != "spec.runtime":
            samples = SAMPLES.get(at) or tuple(_samples(below))
            yield Field(at, tuple(each for each in samples if each != below.get("default")), needed or {})


def _is_block(schema: Schema) -> bool:
    """Whether a field has fields of its own that we decode: parts of pods are leaves to a planner."""
    return (
        schema.get("type") == "object"
        and "properties" in schema
        and "description" in schema
        and not any(name in schema["properties"] for name in ("nodeAffinity", "fsGroup", "privileged"))
    )


def _samples(schema: Schema) -> Iterator[Any]:
    kind = schema.get("type", "")
    if "enum" in schema:
        yield from schema["enum"]
    elif kind == "boolean":
        yield from (True, False)
    elif kind in {"integer", "number"}:
        least = schema.get("minimum", 1)
        yield from (least, least + 1) if kind == "integer" else (0.5,)
    elif kind == "array":
        yield [next(_samples(schema["items"]), {})]
    elif kind == "object":
        needed = schema.get("required", ())
        yield {name: next(_samples(schema["properties"][name])) for name in needed} or (
            {} if "properties" in schema else {"a": "b"}
        )
    else:
        yield from ("1Gi", "2Gi") if "KMGTPE" in schema.get("pattern", "") else ("2", "3")

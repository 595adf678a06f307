"""Every field that a user of the original knows is there, with its type, values, bounds and default.

`data/crd-fields.tsv` has the fields of the original's kinds, the parts of pods expanded. Where ours differ, they differ
on purpose, and `DELIBERATE` says why.
"""

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from llmkube.k8s.crd.definitions import all_crds

Facts = Mapping[str, Any]
Place = tuple[str, str]
"""A kind and a path: `("Model", "spec.files")`; items of a list are `[]`."""

TABLE: Final = Path(__file__).parents[1] / "data" / "crd-fields.tsv"
ROOTS: Final = {
    crd["spec"]["names"]["kind"]: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for crd in all_crds()
}
_NUMBERS: Final = ("min", "max", "minLength", "maxLength", "minItems", "maxItems", "rules")


@attrs.frozen
class Difference:
    """What of which fields is not as in the original, and why."""

    paths: str  # a pattern, after the kind
    facts: str  # separated by spaces
    why: str

    def covers(self, place: Place, fact: str) -> bool:
        return fact in self.facts.split() and any(
            fnmatch.fnmatchcase(" ".join(place).replace("[]", "()"), pattern.replace("[]", "()"))
            for pattern in self.paths.split(", ")
        )


DELIBERATE: Final = (
    Difference("Model spec.source", "pattern", "bare org/repo@revision works, empty URLs do not; builtin:// is ours"),
    Difference("Model spec.hardware", "default", "filled in, so that kubectl get shows the accelerator"),
    Difference("* spec", "rules", "rules about several fields, that the original checks while it reconciles"),
    Difference(
        "Model spec.hardware.memoryBudget, Model spec.hardware.gpu.memory, Model spec.resources.*,"
        " InferenceService spec.resources.*, *.targetAverageValue",
        "pattern maxLength rules",
        "a quantity that does not parse, or is negative, is refused when it is applied",
    ),
    Difference("ModelRouter spec.policy.auth.jwt*", "rules required", "keys are fetched, or are in a Secret"),
    Difference("Model spec.hardware.memoryFraction", "min max over", "a share of the memory is above 0 and at most 1"),
    Difference("Model spec.hardware.gpu.resourceClaims[]*", "minLength maxLength", "an empty name names nothing"),
    Difference("Model spec.hardware.gpu.resourceClaims", "by", "a pod's claims are told apart by name"),
    Difference("Model spec.hardware.gpu.*Name, Model spec.hardware.gpu.*Key", "maxLength", "as long as a key may be"),
    Difference("Model spec.mmproj, *.image, *Config.*, InferenceService spec.cacheTypeCustom*",
               "minLength", "an empty text is no value"),
    Difference("*.model, *.displayName, *.headerKey, *.modelName, *.profile, *.filePath", "minLength",
               "an empty text is no value"),
    Difference("*Ref.name, *Ref.key, *Secrets[].name", "required default minLength maxLength",
               "a reference without a name refers to nothing"),
    Difference("InferenceService spec.modelRef, *.draftModelRef, *.metrics[].name, *.gatewayRef.name*, *.slo.name",
               "minLength maxLength", "a name has between 1 and 253 characters"),
    Difference("InferenceService spec.env[].name", "minLength", "a variable has a name"),
    Difference("InferenceService spec.runtime", "enum", "engines of hosts can be chosen, and those that came later"),
    Difference("InferenceService spec.parallelSlots, InferenceService spec.resources.gpu,"
               " InferenceService spec.evictionProtection", "default", "the reference page says so"),
    Difference("InferenceService spec.autoscaling*", "rules maxItems min",
               "minReplicas above maxReplicas, and metrics that would be dropped without a word, are refused"),
    Difference("*.endpoint", "rules", "a nodePort on a Service that has none is refused"),
    Difference("*.endpoint.gateway", "rules", "gatewayRef is needed when the gateway is enabled, and only then"),
    Difference("*.endpoint.gateway.gatewayRef", "required", "gatewayRef is needed when the gateway is enabled"),
    Difference("InferenceService spec.resources", "rules", "a shared GPU is one GPU"),
    Difference("InferenceService spec.rolloutPolicy.idleTimeoutSeconds", "type", "a number of seconds has a width"),
    Difference("InferenceService spec.slo*", "maxLength", "the cost of a rule is reckoned with the longest text"),
    Difference("InferenceService spec.vllmConfig.*, InferenceService spec.tgiConfig*", "min rules",
               "counts of tokens and GPUs start at 1; no room for an answer is a mistake"),
    Difference("*.gpuMemoryUtilization, *.memFractionStatic", "rules", "0 is not from 0.1 to 0.99"),
    Difference("*.speculative", "rules", "speculation that is turned on says who guesses"),
    Difference("ModelRouter spec.backends[].tier", "default", "an external backend is not local because nobody said"),
    Difference("ModelRouter spec.backends", "rules", "one kind of backend, in the tier that fits it"),
    Difference("ModelRouter spec.backends[].external", "rules", "bedrock and vertex_ai have no address of their own"),
    Difference("ModelRouter spec.backends[].external.url", "pattern maxLength", "a URL is one"),
    Difference("ModelRouter spec.backends, ModelRouter spec.policy.budgets, *.allowlists", "by",
               "two of one name are refused"),
    Difference("ModelRouter *", "maxItems maxLength", "the cost of a rule is reckoned with the longest lists"),
    Difference("*.timeout, ModelRouter spec.proxy.*", "pattern rules", "a time span that does not parse is refused"),
    Difference("ModelRouter spec.rules[].route.strategy", "enum", "least-loaded: one name over several engines"),
    Difference("*.sensitiveClassifications", "minItems", "unset means pii and phi; an empty list would be read so too"),
    Difference("*.allowlists[].team", "pattern", "a team with blanks around it never matches"),
    Difference("ModelRouter spec.policy.*", "rules", "what the original checks while it reconciles"),
)  # fmt: skip

EXTRA: Final = (
    "InferenceService spec.extraVolumes[].ephemeral.volumeClaimTemplate.metadata.",  # it drops the labels there
    "Model status.cacheVolume",  # without it nobody could tell that a claim was made anew
    "Model status.quantization",  # without it a column shows no label where no header was read
    "InferenceService status.selector",  # without it no autoscaler can count the pods of a service
    "InferenceService spec.aliases",  # without it clients keep asking for a name that is not there
    "InferenceService spec.metricsPath",  # without it the metrics of any image are out of reach
    "InferenceService spec.multiNode",  # since September 2026, as is the next one
    "InferenceService spec.vllmConfig.pipelineParallelSize",
    "InferenceService spec.hosts",  # without it one name is served by pods or by hosts, never by both
    "ModelRouter spec.backends[].region",  # where the data of a request may go
    "ModelRouter spec.policy.classification.defaultClassification",  # a request that names no class has one
    "ModelRouter spec.policy.auth.keysSecretRef",  # clients without an issuer of tokens
    "ModelRouter spec.policy.auth.jwt.audiences",  # without them a token for another program counts
    "ModelRouter spec.policy.auth.jwt.jwksSecretRef",  # keys of an issuer that pods do not reach
    "ModelRouter spec.policy.budgetStore",  # without it several pods admit several times what a budget allows
    "InferenceService status.engine",  # without it nobody could tell what serves from what is asked for
    "InferenceService status.runtime",  # without it a column shows what was asked for
    "InferenceService spec.apiKeySecretRef",  # without it clients outside the cluster have no keys of their own
)
"""How fields begin that the original does not have."""


def read_table() -> dict[Place, dict[str, Any]]:
    _, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = {}
    for line in lines:
        kind, path, type_, default, said = line.split("\t")
        facts: dict[str, Any] = {"type": type_}
        if default:
            facts["default"] = json.loads(default)
        for fact in said.split("; ") if said else ():
            name, _, value = fact.partition("=")
            facts[name] = float(value) if name in _NUMBERS else set(value.split(",")) if name == "enum" else value
        found[kind, path] = facts
    return found


def read_schema() -> dict[Place, dict[str, Any]]:
    found: dict[Place, dict[str, Any]] = {}
    for kind, root in ROOTS.items():
        for name in ("spec", "status"):
            required = name in root["required"]
            found |= dict(_fields(kind, name, root["properties"][name], required=required))
    return found


def _fields(kind: str, path: str, schema: Mapping[str, Any], *, required: bool) -> Iterator[tuple[Place, Any]]:
    yield (kind, path), _facts(schema, required=required)
    if schema.get("type") == "array":
        path, schema = f"{path}[]", schema["items"]
    for name, inner in schema.get("properties", {}).items():
        yield from _fields(kind, f"{path}.{name}", inner, required=name in schema.get("required", ()))


def _facts(schema: Mapping[str, Any], *, required: bool) -> dict[str, Any]:
    said = {
        "type": _type(schema),
        "required": "" if required else None,
        "default": schema.get("default"),
        "enum": {str(value) for value in schema["enum"]} if "enum" in schema else None,
        "min": schema.get("minimum"),
        "over": schema.get("exclusiveMinimum"),
        "max": schema.get("maximum"),
        "pattern": None if "x-kubernetes-int-or-string" in schema else schema.get("pattern"),
        "by": ",".join(schema.get("x-kubernetes-list-map-keys", ())) or None,
        "atomic": "" if schema.get("x-kubernetes-map-type") == "atomic" else None,
        "rules": len([*_rules(schema), *_rules(schema.get("items", {}))]) or None,
        **{name: schema.get(name) for name in ("minLength", "maxLength", "minItems", "maxItems")},
    }
    return {name: value for name, value in said.items() if value is not None}


def _rules(schema: Mapping[str, Any]) -> Sequence[Any]:
    return schema.get("x-kubernetes-validations", ())


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "pattern" in schema else "int-or-string"
    if schema["type"] == "array":
        return f"[]{_type(schema['items'])}"
    if "additionalProperties" in schema:
        return f"map[string]{_type(schema['additionalProperties'])}"
    widths = {"boolean": "bool", "date-time": "date-time"}
    return str(widths.get(schema["type"]) or schema.get("format") or schema["type"])


ORIGINAL: Final = read_table()
OURS: Final = read_schema()


def differing() -> Iterator[tuple[Place, str]]:
    """Each fact of a common field that is not as in the original."""
    for place in ORIGINAL.keys() & OURS.keys():
        theirs, ours = ORIGINAL[place], OURS[place]
        yield from ((place, fact) for fact in theirs.keys() | ours.keys() if theirs.get(fact) != ours.get(fact))


def test_every_field_is_there() -> None:
    """No field of the original is missing from ours."""
    assert sorted(ORIGINAL.keys() - OURS.keys()) == []
    assert len(ORIGINAL) > 900


def test_what_differs_does_so_on_purpose() -> None:
    """Type, values, bounds, default and number of rules are the original's, or there is a reason."""
    unexplained = [
        f"{' '.join(place)}: {fact}: {ORIGINAL[place].get(fact)!r}, ours {OURS[place].get(fact)!r}"
        for place, fact in differing()
        if not any(each.covers(place, fact) for each in DELIBERATE)
    ]
    assert sorted(unexplained) == []


@pytest.mark.parametrize("difference", DELIBERATE, ids=lambda each: each.paths)
def test_every_reason_is_needed(difference: Difference) -> None:
    """Each reason explains something, pattern by pattern and fact by fact; the list does not outlive what it is for."""
    found = list(differing())
    for pattern in difference.paths.split(", "):
        narrowed = attrs.evolve(difference, paths=pattern)
        assert any(narrowed.covers(place, fact) for place, fact in found), pattern
    for fact in difference.facts.split():
        assert any(difference.covers(place, fact) for place, which in found if which == fact), fact


def test_what_is_new_is_known() -> None:
    """We have no field of our own but those listed here."""
    new = [" ".join(place) for place in OURS.keys() - ORIGINAL.keys()]
    assert [path for path in sorted(new) if not path.startswith(EXTRA)] == []

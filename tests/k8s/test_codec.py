"""JSON to typed objects and back: what survives, what is refused, and what absence means."""

import json
import typing
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import EXAMPLES
from llmkube.k8s import builtins
from llmkube.k8s.builtins import EndpointSlice, Lease, Secret, Service, ServicePort
from llmkube.k8s.codec import DecodeError, decode, encode
from llmkube.k8s.crd import definitions
from llmkube.k8s.crd.inferenceservice import InferenceService, InferenceServiceSpec
from llmkube.k8s.crd.meta import Condition, ObjectMeta
from llmkube.k8s.crd.model import Model, ModelSpec
from llmkube.k8s.crd.placement import Hardware
from llmkube.k8s.fields import IntOrString, wire_fields
from llmkube.k8s.wire.conditions import find_condition

KINDS: list[Any] = [
    *definitions.KINDS,
    *(kind for kind in vars(builtins).values() if isinstance(kind, type) and hasattr(kind, "RESOURCE")),
]

# -- any object, with fields from the future at every level -----------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
SCALARS = {
    str: st.text(max_size=8),
    bool: st.booleans(),
    int: st.integers(),
    float: st.integers() | st.floats(allow_nan=False),
    IntOrString: st.integers() | st.text(max_size=8),
    Any: JSON,
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Draw JSON that fits a field's type."""
    if attrs.has(annotation):
        return objects_of(annotation)
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return st.lists(values_of(arguments[0]), max_size=2)
    if annotation not in SCALARS:
        return st.dictionaries(st.text(max_size=8), values_of(arguments[1]), max_size=2)
    return SCALARS[annotation]


@st.composite
def objects_of(draw: st.DrawFn, cls: Any) -> dict[str, Any]:
    """Draw a JSON object of a class: required fields, some optional fields, and unknown ones."""
    rows = wire_fields(cls)
    optional = [slot for slot in rows if not slot.facts.required]
    chosen = draw(st.lists(st.sampled_from(optional), max_size=4, unique_by=lambda slot: slot.key)) if optional else []
    known = {slot.key for slot in rows} | {"apiVersion", "kind"}
    unknown = draw(st.dictionaries(st.text(max_size=8).filter(lambda key: key not in known), JSON, max_size=2))
    resource = getattr(cls, "RESOURCE", None)
    identity = {"apiVersion": resource.api_version, "kind": resource.kind} if resource else {}
    present = [slot for slot in rows if slot.facts.required or slot in chosen]
    return identity | unknown | {slot.key: draw(values_of(slot.type)) for slot in present}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=EXAMPLES // 2)
def test_round_trip_is_identity(kind: Any, data: st.DataObject) -> None:
    """Whatever an object holds, known or unknown, default or not, at any level, encoding gives it back as it came."""
    obj = data.draw(objects_of(kind))
    assert encode(decode(kind, obj)) == obj


# -- absence ----------------------------------------------------------------------------------------------------------


def isvc(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "inference.llmkube.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"modelRef": "m", **spec},
    }


def test_absent_fields_have_their_effective_value() -> None:
    """A service that only names its model is one llama.cpp process of normal priority with one slot."""
    spec = decode(InferenceService, isvc()).spec
    assert (spec.replicas, spec.runtime, spec.priority, spec.parallel_slots) == (1, "llamacpp", "normal", 1)
    assert (spec.resources.gpu, spec.endpoint.port, spec.suspend) == (0, 8080, False)
    assert (spec.context_size, spec.autoscaling, spec.extra_args, spec.pod_labels) == (None, None, (), {})


@pytest.mark.parametrize(
    "spec", [{}, {"replicas": 1}, {"resources": {}}, {"resources": {"gpu": 0}}, {"extraArgs": []}, {"podLabels": {}}]
)
def test_given_defaults_stay_given(spec: dict[str, Any]) -> None:
    """A default that was written out stays written out, one that was not stays away, and both mean the same."""
    decoded = decode(InferenceService, isvc(**spec))
    assert encode(decoded) == isvc(**spec)
    assert decoded == decode(InferenceService, isvc())


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ({}, {"replicas": 3}, {"replicas": 3}),
        ({}, {"replicas": 1}, {}),
        ({"replicas": 3}, {"replicas": 1}, {"replicas": 1}),
        ({"contextSize": 512}, {"context_size": None}, {}),
        ({"future": [1]}, {"jinja": False}, {"future": [1], "jinja": False}),
    ],
)
def test_evolve_keeps_what_came(before: dict[str, Any], change: dict[str, Any], after: dict[str, Any]) -> None:
    """A changed copy writes the change, still knows what was given, and still carries unknown fields."""
    decoded = decode(InferenceService, isvc(**before))
    changed = attrs.evolve(decoded, spec=attrs.evolve(decoded.spec, **change))
    assert encode(changed) == isvc(**after)


def test_null_is_absence() -> None:
    """An explicit null of a known field reads as its default and is not written back; an unknown null is kept."""
    decoded = decode(InferenceService, isvc(replicas=None, future=None))
    assert decoded.spec.replicas == 1
    assert encode(decoded) == isvc(future=None)


def test_required_fields_are_always_written() -> None:
    """Fields that the API server requires are written even when empty, and tolerated when missing."""
    assert encode(Condition(type="Ready", status="True")) == {
        "type": "Ready",
        "status": "True",
        "reason": "",
        "message": "",
        "lastTransitionTime": "",
    }
    piece = EndpointSlice(metadata=ObjectMeta(name="s", namespace="a"), address_type="IPv4")
    assert encode(piece)["endpoints"] == []
    assert decode(Condition, {"type": "Ready", "status": "True"}).message == ""


def test_list_items_gain_their_type() -> None:
    """An item of a list comes without apiVersion and kind, decodes all the same, and is written with both."""
    encoded = encode(decode(Lease, {"metadata": {"name": "host", "namespace": "a"}}))
    assert encoded == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "host", "namespace": "a"},
    }


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "data", "path", "sentence"),
    [
        (InferenceServiceSpec, {"modelRef": "m", "replicas": "two"}, "replicas", 'expected an integer, got "two"'),
        (InferenceServiceSpec, {"modelRef": "m", "replicas": True}, "replicas", "expected an integer, got true"),
        (InferenceServiceSpec, {"modelRef": "m", "replicas": 1.5}, "replicas", "expected an integer, got 1.5"),
        (InferenceServiceSpec, {"modelRef": 7}, "modelRef", "expected a string, got 7"),
        (InferenceServiceSpec, {}, "modelRef", "expected a value, got nothing"),
        (InferenceServiceSpec, {"modelRef": None}, "modelRef", "expected a value, got nothing"),
        (InferenceServiceSpec, {"modelRef": "m", "jinja": "yes"}, "jinja", 'expected true or false, got "yes"'),
        (InferenceServiceSpec, {"modelRef": "m", "extraArgs": "-v"}, "extraArgs", 'expected a list, got "-v"'),
        (InferenceServiceSpec, {"modelRef": "m", "extraArgs": ["a", 1]}, "extraArgs[1]", "expected a string, got 1"),
        (InferenceServiceSpec, {"modelRef": "m", "env": [{"value": "v"}]}, "env[0].name", "expected a value"),
        (InferenceServiceSpec, {"modelRef": "m", "podLabels": {"a.b/c": 1}}, "podLabels[a.b/c]", "expected a string"),
        (InferenceServiceSpec, {"modelRef": "m", "affinity": []}, "affinity", "expected an object, got []"),
        (Hardware, {"memoryFraction": "half"}, "memoryFraction", 'expected a number, got "half"'),
        (ServicePort, {"port": 80, "targetPort": 1.5}, "targetPort", "expected an integer or a string, got 1.5"),
        (Model, [], "", "expected an object, got []"),
        (Model, {"kind": "Pod", "metadata": {}}, "kind", 'expected "Model", got "Pod"'),
        (Model, {"metadata": {"name": "m"}, "spec": {"source": []}}, "spec.source", "got [] in Model m"),
        (ModelSpec, {"source": ["x" * 200]}, "source", "xxx..."),
    ],
)  # fmt: skip
def test_errors_name_path_and_value(kind: Any, data: Any, path: str, sentence: str) -> None:
    """An object of the wrong shape is refused with the JSON path of the offence and the value found there."""
    with pytest.raises(DecodeError) as caught:
        decode(kind, data)
    assert caught.value.field == path
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 200


def test_values_out_of_range_are_readable() -> None:
    """Enums and bounds are the API server's business: an object that a newer schema admitted can be read."""
    spec = decode(InferenceServiceSpec, {"modelRef": "m", "runtime": "warp-drive", "replicas": 99})
    assert (spec.runtime, spec.replicas) == ("warp-drive", 99)


# -- secrecy ----------------------------------------------------------------------------------------------------------


def test_secrets_stay_out_of_logs() -> None:
    """The repr of a Secret shows its name and nothing of its data."""
    secret = decode(Secret, {"metadata": {"name": "s"}, "data": {"k": "aHVzaA=="}, "stringData": {"k": "hush"}})
    assert "name='s'" in repr(secret)
    assert "hush" not in repr(secret)
    assert "aHVzaA==" not in repr(secret)


# -- made in Python ---------------------------------------------------------------------------------------------------


def test_find_condition() -> None:
    """A condition is found by its type; a missing one is None."""
    ready = Condition(type="Ready", status="True")
    assert find_condition((Condition(type="Loaded", status="False"), ready), "Ready") is ready
    assert find_condition((ready,), "Loaded") is None


def test_built_objects_encode_as_short_as_they_were_built() -> None:
    """An object made in Python writes what it was given and nothing of its defaults."""
    service = Service(
        metadata=ObjectMeta(name="s", namespace="a", labels={"app": "s"}),
        spec=builtins.ServiceSpec(ports=(ServicePort(name="http", port=8080),)),
    )
    encoded: Mapping[str, Any] = encode(service)
    assert encoded["spec"] == {"ports": [{"port": 8080, "name": "http"}]}
    assert encoded["metadata"] == {"name": "s", "namespace": "a", "labels": {"app": "s"}}


# -- memory -----------------------------------------------------------------------------------------------------------


def _lease(holder: str) -> Mapping[str, Any]:
    text = f'{{"metadata": {{"name": "l", "labels": {{"app": "{holder}"}}}}, "spec": {{"holderIdentity": "{holder}"}}}}'
    parsed: Mapping[str, Any] = json.loads(text)
    return parsed


def test_equal_texts_of_different_objects_are_one() -> None:
    """Two objects from two lines of a watch share their texts, names of labels included; very long ones they do not."""
    first, second = decode(Lease, _lease("studio")), decode(Lease, _lease("studio"))
    assert first.spec.holder_identity is second.spec.holder_identity
    assert next(iter(first.metadata.labels)) is next(iter(second.metadata.labels))
    assert first.metadata.labels["app"] is second.metadata.labels["app"]
    first, second = decode(Lease, _lease("x" * 500)), decode(Lease, _lease("x" * 500))
    assert first.spec.holder_identity is not second.spec.holder_identity


def test_secret_texts_are_not_shared() -> None:
    """Values that stay out of logs are not kept alive by the texts that objects share."""
    first, second = (
        decode(Secret, {"metadata": {"name": "s"}, "data": json.loads('{"k": "aHVzaCE="}')}) for _ in range(2)
    )
    assert first.data == second.data
    assert first.data["k"] is not second.data["k"]

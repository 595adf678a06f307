"""The rules of built-in kinds beyond their schemas."""

import base64
from typing import Any

import pytest

from apiserver.stored_objects import KINDS, SLICE, TAG, judged, made
from llmkube.apiserver.writes import strategy


def test_string_data_is_folded_into_data():
    """A Secret's plain values are stored as base64 and win over data; stringData is never stored."""
    secret = made("Secret", data={"a": "eA==", "b": "eQ=="}, stringData={"a": "hello"})
    assert secret["data"] == {"a": base64.b64encode(b"hello").decode(), "b": "eQ=="}
    assert "stringData" not in secret
    assert secret["type"] == "Opaque"


OTHERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("EndpointSlice", {**SLICE, "ports": [{"port": 1}, {"port": 2}]}, ['ports[1].name: Duplicate value: ""']),
    (
        "Service",
        {"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 80, "name": "a"}]}},
        [
            'spec.ports[1].name: Duplicate value: "a"',
            (
                'spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,'
                '"TargetPort":0,"NodePort":0}'
            ),
        ],
    ),
    (
        "ConfigMap",
        {"data": {"k": "v"}, "binaryData": {"k": "eA=="}},
        ['data[k]: Invalid value: "k": duplicate of key present in binaryData'],
    ),
]
"""Cases that the recorded script does not cover."""


@pytest.mark.parametrize(("kind", "parts", "errors"), OTHERS)
def test_builtin_kinds_have_their_own_rules(kind: str, parts: dict[str, Any], errors: list[str]):
    """Rules that a schema cannot express are checked by the kind, with kube-apiserver's messages."""
    assert judged(kind, **parts) == errors


def test_an_immutable_config_map_stays_as_it_is():
    """Once immutable, neither data nor the mark can change; the type of a Secret never can."""
    old = made("ConfigMap", data={"a": "1"}, immutable=True)
    assert judged("ConfigMap", old, data={"a": "2"}) == [
        "immutable: Forbidden: field is immutable when `immutable` is set",
        "data: Forbidden: field is immutable when `immutable` is set",
    ]
    assert judged("Secret", made("Secret"), type="other") == ['type: Invalid value: "other": field is immutable']


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("nonsense", [None, "x", 1, [], {"a": 1}, [1], [None]])
def test_nonsense_is_refused_and_never_crashes(kind: str, nonsense: Any):
    """Defaulting and validation handle arbitrary JSON in a field of a built-in kind."""
    info = KINDS[kind]
    for field in info.schema.properties:
        sent = {"metadata": dict(TAG), field: nonsense}
        completed, _ = strategy.complete(info, sent)
        strategy.check(info, strategy.prepare(info, completed, None), None)

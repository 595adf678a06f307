"""Bodies as Go encodes them."""

import base64
import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.protocol import protobuf_bodies
from llmkube.apiserver.values.api_errors import RequestRefusedError


def test_a_protobuf_body_is_read():
    """A ConfigMap as Go encodes it becomes the same object as its JSON."""
    type_meta = b"\x0a\x02v1\x12\x09ConfigMap"
    config_map = b"\x0a\x06\x0a\x01x\x1a\x01n" + b"\x12\x06\x0a\x01k\x12\x01v"
    body = b"k8s\x00" + b"\x0a" + bytes([len(type_meta)]) + type_meta + b"\x12" + bytes([len(config_map)]) + config_map
    metadata = {"name": "x", "namespace": "n"}
    assert protobuf_bodies.decode(body) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"k": "v"},
    }


# Made with the serializer of k8s.io/apimachinery v0.36.3, which controller-runtime's client uses: each in both forms
GO_BODIES = json.loads((Path(__file__).parent / "data" / "go_bodies.json").read_text())


def without_nothing(value):
    """An object without what Go's JSON says of fields that nothing was set to."""
    if isinstance(value, dict):
        inner = {name: without_nothing(item) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item not in (None, {}, [], "")}
    return [without_nothing(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("body", GO_BODIES, ids=lambda body: "{apiVersion} {kind}".format(**body["json"]))
def test_a_body_of_a_go_client_is_the_object_that_its_json_is(body):
    """Endpoints, slices, Leases and Events that Go's serializer has written are read as it writes them in JSON."""
    assert without_nothing(protobuf_bodies.decode(base64.b64decode(body["protobuf"]))) == without_nothing(body["json"])


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_protobuf_reader(data):
    """Malformed protobuf is refused or read, never anything else."""
    for body in (data, b"k8s\x00" + data, b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12" + data):
        with contextlib.suppress(RequestRefusedError):
            assert isinstance(protobuf_bodies.decode(body), dict)

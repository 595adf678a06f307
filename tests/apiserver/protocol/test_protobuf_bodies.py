"""Bodies as Go encodes them."""

import contextlib

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


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_protobuf_reader(data):
    """Malformed protobuf is refused or read, never anything else."""
    for body in (data, b"k8s\x00" + data, b"k8s\x00\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12" + data):
        with contextlib.suppress(RequestRefusedError):
            assert isinstance(protobuf_bodies.decode(body), dict)

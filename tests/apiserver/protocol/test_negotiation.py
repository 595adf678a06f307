"""The Accept header decides the format of the response."""

import pytest

from llmkube.apiserver.protocol.negotiation import negotiate


@pytest.mark.parametrize(
    ("accept", "shape"),
    [
        ("", ""),
        ("*/*", ""),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "Table"),
        ("application/json;as=Unknown;v=v1;g=meta.k8s.io,application/json", ""),
        ("application/vnd.kubernetes.protobuf,application/json", ""),
        ("application/json;q=0.1,application/json;as=Table;v=v1;g=meta.k8s.io", "Table"),
    ],
)
def test_the_client_chooses_the_shape(accept, shape):
    """The best choice that the server can write wins."""
    assert negotiate(accept) == shape

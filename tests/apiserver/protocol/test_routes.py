"""A URL names a resource."""

import pytest

from llmkube.apiserver.protocol.server_info import Route, parse_path


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/api/v1/namespaces", Route("", "v1", "namespaces")),
        ("/api/v1/namespaces/a", Route("", "v1", "namespaces", "", "a")),
        ("/api/v1/namespaces/a/status", Route("", "v1", "namespaces", "", "a", "status")),
        ("/api/v1/namespaces/a/pods", Route("", "v1", "pods", "a")),
        ("/api/v1/namespaces/a/pods/b/log", Route("", "v1", "pods", "a", "b", "log")),
        ("/apis/g.io/v1/things/a%2Fb", Route("g.io", "v1", "things", "", "a/b")),
        ("/apis/g.io/v1/namespaces/a/things/b/scale", Route("g.io", "v1", "things", "a", "b", "scale")),
        ("/apis/g.io/v1", None),
        ("/api/v1/namespaces/a/pods/b/log/more", None),
        ("/version", None),
        ("/api/v1//pods", None),
    ],
)
def test_paths_name_resources(path, route):
    """A path is a route or none, whatever is served."""
    assert parse_path(path) == route

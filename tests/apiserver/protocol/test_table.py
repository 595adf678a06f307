"""What tables are made of: ages, JSON paths, selectors, accepted types, protobuf bodies."""

import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.protocol import protobuf_bodies
from llmkube.apiserver.protocol.ages import human_duration
from llmkube.apiserver.protocol.negotiation import negotiate
from llmkube.apiserver.protocol.routes import Route, parse_path
from llmkube.apiserver.protocol.table import table
from llmkube.apiserver.values import jsonpath
from llmkube.apiserver.values.api_errors import RequestRefusedError

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (1500, "25m"),
        (3 * 3600, "3h"),
        (14700, "4h5m"),
        (20 * 3600, "20h"),
        (76 * 3600, "3d4h"),
        (40 * 86400, "40d"),
        (760 * 86400, "2y30d"),
        (9 * 365 * 86400, "9y"),
    ],
)
def test_ages_read_as_kubectl_writes_them(seconds, shown):
    """Two units while young, one when old."""
    assert human_duration(seconds) == shown


DOCUMENT = {
    "metadata": {"labels": {"a.b/c": "x"}},
    "status": {
        "phase": "Ready",
        "conditions": [
            {"type": "Other", "status": "False"},
            {"type": "Available", "status": "True", "count": 3},
        ],
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".status.phase", ["Ready"]),
        ("{.status.phase}", ["Ready"]),
        ("$.status.phase", ["Ready"]),
        (r".metadata.labels.a\.b/c", ["x"]),
        (".metadata.labels['a.b/c']", ["x"]),
        ('.status.conditions[?(@.type=="Available")].status', ["True"]),
        (".status.conditions[?(@.count>2)].type", ["Available"]),
        (".status.conditions[?(@.count)].type", ["Available"]),
        (".status.conditions[0].type", ["Other"]),
        (".status.conditions[-1].type", ["Available"]),
        (".status.conditions[*].type", ["Other", "Available"]),
        ("..type", ["Other", "Available"]),
        (".status.absent.deeper", []),
        (".status.conditions[9].type", []),
        (".status.phase.deeper", []),
    ],
)
def test_json_paths_reach_what_they_name(path, found):
    """Each form of step that a CRD may use finds its values, and a wrong turn finds nothing."""
    assert jsonpath.find(path, DOCUMENT) == found


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


def test_builtin_kinds_have_their_well_known_columns():
    """A Service, an Event and a slice read as in a cluster."""
    catalog = Catalog()

    def cells(group, plural, item):
        kind = catalog.find(group, "v1", plural)
        drawn = table(kind, [item], {}, NOW, include="None", header=True)
        return dict(zip([c["name"] for c in drawn["columnDefinitions"]], drawn["rows"][0]["cells"], strict=True))

    meta = {"name": "x", "creationTimestamp": "2026-01-01T11:59:00Z"}
    service = {"metadata": meta, "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.9", "ports": [{"port": 80}]}}
    shown = cells("", "services", service)
    assert (shown["Name"], shown["Cluster-IP"], shown["Port(s)"], shown["Age"]) == ("x", "10.96.0.9", "80/TCP", "60s")
    event = {
        "metadata": meta,
        "involvedObject": {"kind": "Model", "name": "m"},
        "lastTimestamp": "2026-01-01T11:00:00Z",
        "reason": "Fetched",
        "message": "done",
    }
    shown = cells("", "events", event)
    assert (shown["Last Seen"], shown["Object"], shown["Count"]) == ("60m", "model/m", 1)
    sliced = {"metadata": meta, "ports": [{"port": 8080}], "endpoints": [{"addresses": [str(n)]} for n in range(5)]}
    shown = cells("discovery.k8s.io", "endpointslices", sliced)
    assert (shown["Ports"], shown["Endpoints"]) == ("8080", "0,1,2 + 2 more...")
    assert cells("discovery.k8s.io", "endpointslices", {"metadata": meta, "ports": [{"name": "any"}]})["Ports"] == "any"
    both = {"addresses": [{"ip": "a"}, {"ip": "b"}], "ports": [{"port": 1}, {"port": 2}]}
    assert cells("", "endpoints", {"metadata": meta, "subsets": [both]})["Endpoints"] == "a:1,b:1,a:2 + 1 more..."
    scale = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": {"replicas": 3}}
    shown = cells("", "services", scale)
    assert (shown["Desired"], shown["Available"]) == (3, 0)


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

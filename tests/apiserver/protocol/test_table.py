"""Parts of tables: ages, JSON paths, selectors, accepted types, protobuf bodies."""

from datetime import UTC, datetime

import pytest

from llmkube.apiserver.kinds.catalog import Catalog
from llmkube.apiserver.protocol.table import age, table

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_builtin_kinds_have_their_well_known_columns():
    """A Service, an Event and a slice read as in a cluster."""
    catalog = Catalog()

    def cells(group, plural, item):
        kind = catalog.find(group, "v1", plural)
        drawn = table(kind, item, NOW, include="None", header=True)
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


@pytest.mark.parametrize(
    ("timestamp", "shown"),
    [
        ("2026-01-01T11:56:40Z", "3m20s"),
        ("2026-01-01T12:00:01.5Z", "0s"),
        ("2026-01-01T12:00:05Z", "<invalid>"),
        ("noon", "<invalid>"),
        (None, "<unknown>"),
    ],
)
def test_an_age_is_computed_from_a_timestamp(timestamp, shown):
    """A clock that is a little ahead makes an age of nothing; what lies in the future has none."""
    assert age(timestamp, NOW) == shown

"""Requests are counted by verb and resource."""

import importlib.util
from pathlib import Path

import pytest

from llmkube.base.http.message import Headers, Request

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "counted_server.py"
OURS = "/apis/inference.llmkube.dev/v1alpha1"


@pytest.fixture(scope="module")
def named():
    spec = importlib.util.spec_from_file_location("benchmark_counted_server", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.named


@pytest.mark.parametrize(
    ("method", "target", "content_type", "name"),
    [
        ("GET", "/api/v1/services?limit=500", "", "list services"),
        ("GET", f"{OURS}/namespaces/ml/models?watch=1", "", "watch models"),
        ("GET", f"{OURS}/namespaces/ml/models/phi", "", "get models"),
        ("GET", "/api/v1/namespaces", "", "list namespaces"),
        ("GET", "/api/v1/namespaces/ml", "", "get namespaces"),
        ("POST", "/api/v1/namespaces/ml/events", "application/json", "create events"),
        ("PATCH", f"{OURS}/namespaces/ml/models/phi/status", "application/apply-patch+yaml", "apply models/status"),
        ("PATCH", "/apis/apps/v1/namespaces/ml/deployments/a", "application/merge-patch+json", "patch deployments"),
        ("PUT", "/apis/apps/v1/namespaces/ml/deployments/a", "application/json", "update deployments"),
        ("DELETE", "/api/v1/namespaces/ml/services/a", "", "delete services"),
        ("GET", "/apis/apps/v1", "", "GET discovery"),
    ],
)
def test_a_request_has_the_name_that_a_role_gives_it(named, method, target, content_type, name):
    """Verb and resource are those of RBAC, apart from apply; a subresource belongs to the resource."""
    headers = Headers.of({"Content-Type": content_type}) if content_type else Headers.of({})
    assert named(Request(method, target, headers, b"")) == name

"""Declared needs become rules and nothing else, and requests are read as an authorizer reads them."""

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest

from k8s.api_calls import ApiCall, undeclared, unused
from llmkube.k8s.builtins import ConfigMap, Lease, Namespace, Service
from llmkube.k8s.crd.model import Model
from llmkube.k8s.rbac import APPLY, LIST_AND_WATCH, Permission, Program, rbac_manifests
from llmkube.k8s.request import APPLY_PATCH

PROGRAM = Program(
    "tester",
    (
        Permission(Model, LIST_AND_WATCH),
        Permission(Model, frozenset({"patch"}), subresource="status"),
        Permission(Service, APPLY),
        Permission(ConfigMap, APPLY),
        Permission(Service, frozenset({"delete"})),
        Permission(Lease, frozenset({"get"}), place="system"),
        Permission(Namespace, frozenset({"get", "create"}), place="system"),
    ),
)
MODELS = "inference.llmkube.dev"
SERVED_RULES = [
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "patch"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["create", "delete", "patch"]},
    {"apiGroups": [MODELS], "resources": ["models"], "verbs": ["list", "watch"]},
    {"apiGroups": [MODELS], "resources": ["models/status"], "verbs": ["patch"]},
]


def by_kind(manifests):
    return {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one for one in manifests}


def test_a_program_for_all_namespaces_has_one_cluster_role():
    """Served kinds are granted everywhere, the system's ones in their namespace, and that namespace by its name."""
    found = by_kind(rbac_manifests(PROGRAM, system_namespace="sys"))
    assert list(found) == [
        ("Namespace", None, "sys"),
        ("ServiceAccount", "sys", "tester"),
        ("ClusterRole", None, "tester"),
        ("ClusterRoleBinding", None, "tester"),
        ("Role", "sys", "tester-system"),
        ("RoleBinding", "sys", "tester-system"),
    ]
    assert found["ClusterRole", None, "tester"]["rules"] == [
        *SERVED_RULES,
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"], "resourceNames": ["sys"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["create"]},
    ]
    assert found["Role", "sys", "tester-system"]["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
    ]
    for binding in (found["ClusterRoleBinding", None, "tester"], found["RoleBinding", "sys", "tester-system"]):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "tester", "namespace": "sys"}]
        assert binding["roleRef"]["kind"] == binding["kind"].removesuffix("Binding")
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]


@pytest.mark.parametrize("served", ["ml", "sys"])
def test_a_program_of_one_namespace_has_no_right_elsewhere(served):
    """Nothing cluster-wide is granted, and its two roles never share a name, not even in the system's namespace."""
    found = by_kind(rbac_manifests(PROGRAM, system_namespace="sys", namespace=served))
    assert found["Role", served, "tester"]["rules"] == SERVED_RULES
    assert ("Role", "sys", "tester-system") in found
    assert not [kind for kind, _, _ in found if kind.startswith("Cluster")]
    assert len(found) == 6


def test_no_rule_is_a_wildcard_or_browses_secrets():
    """The programs request named verbs on named resources; a Secret can only be read by its name."""
    from llmkube.controller.rights import PROGRAM as CONTROLLER
    from llmkube.programs.gateway.rights import PROGRAM as GATEWAY
    from llmkube.supervisor.rights import PROGRAM as AGENT

    for program in (CONTROLLER, AGENT, GATEWAY):
        for manifest in rbac_manifests(program, system_namespace="llmkube-system"):
            for rule in manifest.get("rules", []):
                assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
                assert "secrets" not in rule["resources"] or rule["verbs"] == ["get"]


@pytest.mark.parametrize(
    ("method", "url", "content_type", "expected"),
    [
        ("GET", "/api/v1/services?limit=5", "", ({"list"}, "", "services", "", "")),
        ("GET", "/api/v1/namespaces/ml/services?watch=1", "", ({"watch"}, "", "services", "ml", "")),
        ("GET", "/api/v1/namespaces/ml", "", ({"get"}, "", "namespaces", "", "ml")),
        ("POST", "/api/v1/namespaces", "", ({"create"}, "", "namespaces", "", "")),
        ("DELETE", "/api/v1/namespaces/ml/services/x", "", ({"delete"}, "", "services", "ml", "x")),
        ("PATCH", "/apis/g/v1/namespaces/ml/models/x", APPLY_PATCH, ({"patch", "create"}, "g", "models", "ml", "x")),
        ("PATCH", "/apis/g/v1/namespaces/n/models/x/status", APPLY_PATCH, ({"patch"}, "g", "models/status", "n", "x")),
    ],
)
def test_requests_are_read_as_an_authorizer_reads_them(method, url, content_type, expected):
    """Verb, group, resource, namespace and name come from method, path, query and media type."""
    request = httpx.Request(method, f"http://apiserver{url}", headers={"content-type": content_type})
    verbs, *rest = expected
    assert ApiCall.of(request) == ApiCall(frozenset(verbs), *rest)


def test_a_call_too_many_is_found():
    """A verb that is not declared, and a system kind in another namespace, are both undeclared."""
    leases = "/apis/coordination.k8s.io/v1/namespaces"
    calls = [
        ApiCall.of(httpx.Request("DELETE", f"http://x{leases}/sys/leases/a")),
        ApiCall.of(httpx.Request("GET", f"http://x{leases}/ml/leases/a")),
        ApiCall.of(httpx.Request("GET", f"http://x{leases}/sys/leases/a")),
    ]
    assert undeclared(calls, PROGRAM, "sys") == set(calls[:2])
    assert "get leases" not in unused(calls, PROGRAM, "sys")
    assert "watch models" in unused(calls, PROGRAM, "sys")

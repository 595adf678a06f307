"""The stations of a write, for built-in kinds and custom ones."""

import base64
from typing import Any

import pytest

from llmkube.apiserver.kinds.kind_info import BUILTIN_KINDS, KindInfo, kinds_from_crd
from llmkube.apiserver.values import name_rules
from llmkube.apiserver.writes import strategy

KINDS = {kind.resource.kind: kind for kind in BUILTIN_KINDS}
TAG = {"name": "a", "namespace": "default"}


def custom(*, status: bool = True) -> KindInfo:
    body = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    }
    version: dict[str, Any] = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": body}}
    if status:
        version["subresources"] = {"status": {}}
    called = {"plural": "widgets", "kind": "Widget"}
    return kinds_from_crd({"spec": {"group": "g.dev", "scope": "Namespaced", "names": called, "versions": [version]}})[
        0
    ]


def made(kind: str, **parts: Any) -> dict[str, Any]:
    """A stored object of a kind."""
    info = KINDS[kind]
    tag = TAG if info.resource.namespaced else {"name": "a"}
    completed, _ = strategy.complete(info, {"metadata": dict(tag), **parts})
    return strategy.prepare(info, completed, None)


def judged(kind: str, old: dict[str, Any] | None = None, **parts: Any) -> list[str]:
    """What is wrong with an object, as text; an update when `old` is given."""
    info = KINDS[kind]
    tag = dict(TAG) if info.resource.namespaced else {"name": "a"}
    if old is not None:
        tag["resourceVersion"] = "1"
    completed, _ = strategy.complete(info, {"metadata": tag, **parts})
    return [str(error) for error in strategy.check(info, strategy.prepare(info, completed, old), old)]


def test_a_write_to_the_object_leaves_status_alone():
    """A status in a create is dropped, and in an update replaced by the stored one."""
    kind = custom()
    assert "status" not in strategy.prepare(kind, {"metadata": TAG, "status": {"n": 1}}, None)
    old = {"metadata": TAG, "spec": {"n": 1}, "status": {"n": 1}}
    new = strategy.prepare(kind, {"metadata": TAG, "spec": {"n": 2}, "status": {"n": 9}}, old)
    assert (new["spec"], new["status"]) == ({"n": 2}, {"n": 1})


def test_a_write_to_status_leaves_everything_else_alone():
    """Through the status endpoint spec and labels stay as stored; only status and managedFields move."""
    old = {"metadata": {**TAG, "labels": {"a": "b"}}, "spec": {"n": 1}}
    sent = {"metadata": {**TAG, "managedFields": [{"manager": "m"}]}, "spec": {"n": 2}, "status": {"n": 9}}
    new = strategy.prepare(custom(), sent, old, "status")
    assert new["spec"] == {"n": 1}
    assert new["status"] == {"n": 9}
    assert new["metadata"] == {**TAG, "labels": {"a": "b"}, "managedFields": [{"manager": "m"}]}


def test_without_a_status_subresource_status_is_a_field_like_any_other():
    """A kind that has no status endpoint takes its status with the object, and counts it in the generation."""
    kind = custom(status=False)
    old = {"metadata": {**TAG, "generation": 3}, "status": {"n": 1}}
    new = strategy.prepare(kind, {"metadata": TAG, "status": {"n": 2}}, old)
    assert new["status"] == {"n": 2}
    assert strategy.next_generation(kind, new, old) == 4


def test_generation_counts_changes_of_the_desired_state():
    """Generation starts at 1, grows with spec, and stays for labels and status; built-in kinds mostly have none."""
    kind = custom()
    old = {"metadata": {**TAG, "generation": 3}, "spec": {"n": 1}, "status": {"n": 1}}
    assert strategy.next_generation(kind, old, None) == 1
    assert strategy.next_generation(kind, {**old, "spec": {"n": 2}}, old) == 4
    assert strategy.next_generation(kind, {**old, "status": {"n": 2}}, old) == 3
    assert strategy.next_generation(kind, {**old, "metadata": {**TAG, "labels": {"a": "b"}}}, old) == 3
    assert strategy.next_generation(KINDS["ConfigMap"], {}, None) is None


def test_server_kept_metadata_survives_a_client_that_omits_it():
    """An update without uid and creation time keeps the stored ones; only some kinds may omit the resourceVersion."""
    old = {"metadata": {**TAG, "uid": "u", "creationTimestamp": "t", "resourceVersion": "7"}}
    config = strategy.prepare(KINDS["ConfigMap"], {"metadata": dict(TAG)}, old)
    assert config["metadata"] == old["metadata"]
    widget = strategy.prepare(custom(), {"metadata": dict(TAG)}, old)
    assert [str(error) for error in strategy.check(custom(), widget, old)] == 2 * [
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    ]


METADATA: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "metadata.name: Required value: name or generateName is required"),
    ({"name": "Foo"}, 'metadata.name: Invalid value: "Foo": a lowercase RFC 1123 subdomain must consist of'),
    ({"name": "a" * 254}, "must be no more than 253 characters"),
    ({"labels": {"a b": "x"}}, 'metadata.labels: Invalid value: "a b": name part must consist of'),
    ({"labels": {"a": "x y"}}, 'metadata.labels: Invalid value: "x y": a valid label must be an empty string or'),
    ({"labels": {"/a": "x"}}, "prefix part must be non-empty"),
    ({"labels": {"a/b/c": "x"}}, "a valid label key must consist of"),
    (
        {"labels": {"a": 1}},
        'metadata.labels.a: Invalid value: "integer": metadata.labels.a in body must be of type string',
    ),
    ({"labels": "x"}, 'must be of type object: "string"'),
    ({"annotations": {"a": "x" * 300_000}}, "metadata.annotations: Too long: may not be more than 262144 bytes"),
    ({"finalizers": ["x y"]}, 'metadata.finalizers: Invalid value: "x y"'),
    ({"ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": ""}]}, "metadata.ownerReferences.uid"),
    (
        {
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "K", "name": name, "uid": name, "controller": True} for name in ("x", "y")
            ]
        },
        'Only one reference can have Controller set to true. Found "true" in references for K/x and K/y',
    ),
    ({"generateName": "A-"}, "metadata.generateName: Invalid value"),
]


@pytest.mark.parametrize(("tag", "message"), METADATA)
def test_bad_metadata_is_refused(tag: dict[str, Any], message: str):
    """Names, labels, annotations, owners and finalizers are judged in kube-apiserver's words."""
    errors = strategy.check(custom(), {"metadata": {**TAG, **tag}}, None)
    assert message in "\n".join(map(str, errors))


def test_identity_cannot_change():
    """Name, uid and creation time are immutable, and no finalizer joins an object that is going."""
    old = {"metadata": {**TAG, "uid": "u", "resourceVersion": "1", "deletionTimestamp": "t", "finalizers": ["a/b"]}}
    new = {"metadata": {**old["metadata"], "uid": "v", "finalizers": ["a/b", "c/d"]}}
    assert [str(error) for error in strategy.check(custom(), new, old)] == 2 * [
        (
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted,"
            ' found new finalizers []string{"c/d"}'
        ),
        'metadata.uid: Invalid value: "v": field is immutable',
    ]


def test_a_cluster_scoped_object_has_no_namespace():
    """A namespace on a cluster-scoped kind is forbidden."""
    errors = strategy.check(KINDS["Namespace"], {"metadata": TAG}, None)
    assert [str(error) for error in errors] == ["metadata.namespace: Forbidden: not allowed on this type"]


def test_names_are_judged_by_the_kind():
    """A dot is fine in a config map's name and wrong in a service's or namespace's."""
    assert name_rules.subdomain("a.b") == ""
    assert "DNS-1035 label" in name_rules.label_1035("a.b")
    assert "DNS-1035 label" in name_rules.label_1035("1a")
    assert "RFC 1123 label" in name_rules.label("a_b")
    assert name_rules.label("a.b") == "must not contain dots"


def test_string_data_is_folded_into_data():
    """A Secret's plain values are stored as base64 and win over data; stringData is never stored."""
    secret = made("Secret", data={"a": "eA==", "b": "eQ=="}, stringData={"a": "hello"})
    assert secret["data"] == {"a": base64.b64encode(b"hello").decode(), "b": "eQ=="}
    assert "stringData" not in secret
    assert secret["type"] == "Opaque"


def test_a_namespace_starts_active_and_labelled():
    """A new Namespace has its phase, its finalizer and its name as a label."""
    namespace = made("Namespace")
    assert namespace["status"] == {"phase": "Active"}
    assert namespace["spec"] == {"finalizers": ["kubernetes"]}
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "a"}


def test_a_service_is_filled_in():
    """Type, affinity, protocol, target port and traffic policy have their defaults."""
    assert made("Service", spec={"ports": [{"port": 80}]})["spec"] == {
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "sessionAffinity": "None",
        "type": "ClusterIP",
        "internalTrafficPolicy": "Cluster",
    }


def test_a_service_keeps_its_address():
    """An update without clusterIP keeps it; one with another is refused."""
    old = made("Service", spec={"ports": [{"port": 80}], "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]})
    old["metadata"]["resourceVersion"] = "1"
    assert judged("Service", old, spec={"ports": [{"port": 81}]}) == []
    moved = {"ports": [{"port": 80}], "clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"]}
    assert judged("Service", old, spec=moved) == [
        'spec.clusterIPs[0]: Invalid value: ["10.96.0.8"]: may not change once set'
    ]


SLICE = {"addressType": "IPv4", "ports": []}
LOOPBACK = "may not be in the loopback range (127.0.0.0/8, ::1/128)"
LINK_LOCAL = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
MULTICAST = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"

ADDRESSES: list[tuple[str, str, str]] = [
    ("IPv4", "10.0.0.1", ""),
    ("IPv4", "192.168.1.2", ""),
    ("IPv4", "127.0.0.1", LOOPBACK),
    ("IPv4", "127.9.9.9", LOOPBACK),
    ("IPv4", "169.254.1.1", LINK_LOCAL),
    ("IPv4", "224.0.0.5", MULTICAST),
    ("IPv4", "0.0.0.0", "may not be unspecified (0.0.0.0)"),
    ("IPv4", "10.0.0", "must be a valid IP address"),
    ("IPv4", "010.0.0.1", "must not have leading 0s"),
    ("IPv6", "2001:db8::1", ""),
    ("IPv6", "::1", LOOPBACK),
    ("IPv6", "::ffff:127.0.0.1", "must not be an IPv4-mapped IPv6 address"),
    ("IPv6", "2001:DB8:0:0::1", 'must be in canonical form ("2001:db8::1")'),
    ("IPv6", "fe80::1", LINK_LOCAL),
    ("IPv6", "ff02::1", MULTICAST),
    ("FQDN", "host.example.com", ""),
    ("FQDN", "Host", "a lowercase RFC 1123 subdomain"),
]


@pytest.mark.parametrize(("kind", "address", "message"), ADDRESSES)
def test_a_slice_refuses_addresses_that_are_local_everywhere(kind: str, address: str, message: str):
    """Loopback, link-local, unspecified and malformed addresses are refused at their index, others pass."""
    errors = judged("EndpointSlice", addressType=kind, endpoints=[{"addresses": [address]}])
    if message:
        (error,) = errors
        assert error.startswith(f'endpoints[0].addresses[0]: Invalid value: "{address}": {message}')
    else:
        assert errors == []


def test_a_slice_keeps_to_one_family():
    """An address of the other family is refused at the list, as kube-apiserver does."""
    for kind, address in (("IPv4", "2001:db8::1"), ("IPv6", "10.0.0.1")):
        assert judged("EndpointSlice", addressType=kind, endpoints=[{"addresses": [address]}]) == [
            f'endpoints[0].addresses: Invalid value: "{address}": must be an {kind} address'
        ]


def test_endpoints_refuse_loopback_too():
    """The classic Endpoints object has the same rule."""
    subsets = [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 80}]}]
    assert judged("Endpoints", subsets=subsets) == [
        f'subsets[0].addresses[0].ip: Invalid value: "127.0.0.1": {LOOPBACK}'
    ]


OTHERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("EndpointSlice", {"endpoints": []}, ["addressType: Required value"]),
    (
        "EndpointSlice",
        {"addressType": "IPX"},
        ['addressType: Unsupported value: "IPX": supported values: "FQDN", "IPv4", "IPv6"'],
    ),
    (
        "EndpointSlice",
        {**SLICE, "endpoints": [{"addresses": []}]},
        ["endpoints[0].addresses: Required value: must contain at least 1 address"],
    ),
    ("EndpointSlice", {**SLICE, "ports": [{"port": 1}, {"port": 2}]}, ['ports[1].name: Duplicate value: ""']),
    ("Endpoints", {"subsets": [{}]}, ["subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`"]),
    ("Service", {}, ["spec.ports: Required value"]),
    (
        "Service",
        {"spec": {"ports": [{"port": 0}]}},
        [
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
        ],
    ),
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
        "Service",
        {"spec": {"ports": [{"port": 80}, {"port": 81}]}},
        ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"],
    ),
    (
        "Service",
        {"spec": {"type": "Weird", "ports": [{"port": 80}]}},
        [
            (
                'spec.type: Unsupported value: "Weird":'
                ' supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'
            )
        ],
    ),
    ("Service", {"spec": {"type": "ExternalName"}}, ["spec.externalName: Required value"]),
    ("Service", {"spec": {"clusterIP": "None"}}, []),
    (
        "Lease",
        {"spec": {"leaseDurationSeconds": 0}},
        ["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
    ),
    ("Secret", {"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}, ["data[tls.key]: Required value"]),
    (
        "ConfigMap",
        {"data": {"k": "v"}, "binaryData": {"k": "eA=="}},
        ['data[k]: Invalid value: "k": duplicate of key present in binaryData'],
    ),
    (
        "Event",
        {"involvedObject": {"namespace": "other"}},
        ['involvedObject.namespace: Invalid value: "other": does not match event.namespace'],
    ),
]


@pytest.mark.parametrize(("kind", "parts", "errors"), OTHERS)
def test_builtin_kinds_have_their_own_rules(kind: str, parts: dict[str, Any], errors: list[str]):
    """What a schema cannot say is judged by the kind, in kube-apiserver's words."""
    assert judged(kind, **parts) == errors


def test_a_slices_address_type_is_fixed():
    """The addressType of a stored slice cannot change."""
    old = made("EndpointSlice", **SLICE, endpoints=[])
    old["metadata"]["resourceVersion"] = "1"
    assert judged("EndpointSlice", old, addressType="IPv6", endpoints=[]) == [
        'addressType: Invalid value: "IPv6": field is immutable'
    ]


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
    """Whatever JSON stands in a field of a built-in kind, completing and judging it answers."""
    info = KINDS[kind]
    for field in info.schema.properties:
        sent = {"metadata": dict(TAG), field: nonsense}
        completed, _ = strategy.complete(info, sent)
        strategy.check(info, strategy.prepare(info, completed, None), None)

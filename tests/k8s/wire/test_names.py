"""Names are derived alike by every program, valid where they are used, and never shared by accident."""

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmkube.k8s.wire.names import claim_name, endpoint_url, host_id, label_value, service_name, slice_name

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
DNS_1123_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

labels = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
object_names = st.lists(labels, min_size=1, max_size=8).map(".".join).filter(lambda name: len(name) <= 253)


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:6]


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("chat", "chat"),
        ("a", "a"),
        ("qwen3-8b", "qwen3-8b"),
        ("a" * 63, "a" * 63),
        ("a.b", f"a-b-{digest('a.b')}"),
        ("a-.b", f"a-b-{digest('a-.b')}"),
        ("7b", f"s-7b-{digest('7b')}"),
        ("0", f"s-0-{digest('0')}"),
        ("a" * 64, f"{'a' * 56}-{digest('a' * 64)}"),
        ("a" * 55 + ".b.c", f"{'a' * 55}-{digest('a' * 55 + '.b.c')}"),
        ("é", f"s-{digest('é')}"),
    ],
)
def test_service_name_table(name, service):
    """A name that a Service may have is kept; any other one is respelled and carries its own digest."""
    assert service_name(name) == service


@given(object_names)
@example("9" * 253)
@example("a." * 126 + "a")
def test_every_object_name_gives_a_valid_service(name):
    """Whatever an InferenceService may be called, its Service's name is a DNS-1035 label."""
    assert DNS_1035.fullmatch(service_name(name))


@given(st.text(max_size=300))
def test_no_text_gives_an_invalid_name(text):
    """Even a name that no API server admits yields valid names, so a bad flag cannot become a rejected write."""
    assert DNS_1035.fullmatch(service_name(text))
    assert DNS_1123_SUBDOMAIN.fullmatch(host_id(text))
    assert len(host_id(text)) <= 63


@given(object_names, object_names)
@example("a.b", "a-b")
@example("a" * 70 + "x", "a" * 70 + "y")
@example("7b", "s-7b")
def test_two_services_never_share_a_name(one, other):
    """Different InferenceServices have different Services."""
    assert (service_name(one) == service_name(other)) is (one == other)


@given(object_names)
def test_names_are_idempotent(name):
    """Deriving a name from a derived name changes nothing, so it does not matter who derives it."""
    assert service_name(service_name(name)) == service_name(name)
    assert host_id(host_id(name)) == host_id(name)
    assert label_value(label_value(name)) == label_value(name)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("studio", "studio"),
        ("mac.local", "mac.local"),
        ("4f1c", "4f1c"),
        ("Studio", f"studio-{digest('Studio')}"),
        ("Ann's Mac", f"ann-s-mac-{digest(chr(65) + 'nn' + chr(39) + 's Mac')}"),
        ("mac_mini", f"mac-mini-{digest('mac_mini')}"),
        ("x" * 64, f"{'x' * 56}-{digest('x' * 64)}"),
        ("☃", f"host-{digest('☃')}"),
    ],
)
def test_host_id_table(name, host):
    """A host keeps its name where a Lease and a label may carry it."""
    assert host_id(name) == host


@given(object_names)
def test_label_values_are_valid(name):
    """An object's name becomes a label's value that a selector can match."""
    assert LABEL_VALUE.fullmatch(label_value(name))
    assert len(name) > 63 or label_value(name) == name


def test_slices_of_different_services_never_collide():
    """Service `chat` on host `mac-studio` and service `chat-mac` on host `studio` have different slices."""
    assert slice_name("chat", "studio") == "chat.studio"
    assert slice_name("chat", "mac-studio") != slice_name("chat-mac", "studio")


@given(object_names, st.text(max_size=80))
def test_slice_names_fit(name, host):
    """A slice's name is a DNS-1123 subdomain within Kubernetes' limit."""
    got = slice_name(service_name(name), host)
    assert DNS_1123_SUBDOMAIN.fullmatch(got)
    assert len(got) <= 127


def test_endpoint_url_names_port_and_path():
    """The URL spells out the cluster's domain, so that it also resolves from pods with a short search list."""
    assert (
        endpoint_url("chat", "ml", port=8080, path="/v1/chat/completions")
        == "http://chat.ml.svc.cluster.local:8080/v1/chat/completions"
    )
    assert (
        endpoint_url("chat", "ml", port=80, path="", cluster_domain="corp.example")
        == "http://chat.ml.svc.corp.example:80"
    )


@given(
    st.tuples(labels, object_names, st.integers(0, 99)),
    st.tuples(labels, object_names, st.integers(0, 99)),
)
def test_two_claims_share_a_name_only_if_they_are_one(one, other):
    """The name of a claim identifies namespace, service and slot, and is valid for a Lease."""
    names = [claim_name(*each) for each in (one, other)]
    assert (names[0] == names[1]) == (one == other)
    assert all(len(name) <= 253 and DNS_1123_SUBDOMAIN.fullmatch(name) for name in names)


def test_long_names_make_claims_of_their_own():
    """Services that differ in their last characters only do not share a claim."""
    one, other = claim_name("n" * 63, "a" * 252 + "b", 1), claim_name("n" * 63, "a" * 252 + "c", 1)
    assert one != other
    assert len(one) <= 253


@pytest.mark.parametrize("name", ["claim.default.chat.0", "llmkube-controller", "llmkube-controller.ml"])
def test_a_host_is_never_called_like_another_lease(name):
    """A host with the name of a claim, or of the controller's Lease, has a Lease of another name."""
    assert host_id(name) != name
    assert host_id(host_id(name)) == host_id(name)

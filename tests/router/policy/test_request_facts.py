"""Facts of a request for the policy, in any notation."""

import attrs
import pytest

from llmkube.router.config.routing_config import Backend, Classes, RoutingConfig
from llmkube.router.policy.request_facts import Principal, facts_of

CONFIG = RoutingConfig(
    name="ml/front",
    backends={
        "mac": Backend(
            name="mac", model_id="mac", base_url="http://m.svc/v1", local=True, capabilities=frozenset({"vision"})
        )
    },
    classes=Classes(default="internal"),
)
NAME = "x-llmkube-classification"


def facts(head=None, body=None):
    return facts_of(CONFIG, head or {}, {"model": "m"} if body is None else body, Principal(team="red"))


@pytest.mark.parametrize(
    ("written", "classes"),
    [
        ("pii", {"pii"}),
        ("PII", {"pii"}),
        ("pii, phi", {"pii", "phi"}),
        ("pii,phi,,", {"pii", "phi"}),
        ("", {"internal"}),
        (" , ", {"internal"}),
        ('"pii"', {"pii"}),
        ("public;pii", {"public;pii", "public", "pii"}),
        ("top secret, pii", {"top secret", "top", "secret", "pii"}),
        ("public\xa0pii", {"public\xa0pii", "public pii", "public", "pii"}),
        ("public/pii|phi", {"public/pii|phi", "public/pii", "public", "pii", "phi"}),
        ('["pii"]', {'["pii"]', "pii"}),
        ("data=pii", {"data=pii", "data", "pii"}),
        ("top  secret", {"top  secret", "top secret", "top", "secret"}),
    ],
)
def test_no_reading_of_a_label_loses_a_class(written, classes):
    """An extra class closes backends; a missing one opens them."""
    assert facts({NAME: written}).classes == classes


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("höchst", "höchst"),
        ("HÖCHST", "höchst"),
        ("ho\u0308chst", "höchst"),
        ("\uff50\uff49\uff49", "pii"),
        ("pii\u200b", "pii"),
        ("p\u200dii", "pii"),
        ("public\u00a0pii", "pii"),
        ("\ufeffpii", "pii"),
    ],
)
def test_a_label_with_other_signs_is_the_class_that_it_looks_like(written, meant):
    """A client sends UTF-8, or Latin-1 if that has the characters; the head is read as Latin-1."""
    assert meant in facts({NAME: written.encode().decode("latin-1")}).classes
    assert meant in facts({NAME: written}).classes  # `llmkube router explain` gets it as typed


def test_a_default_of_several_classes_is_all_of_them():
    """It is read like a header: as a single class it would not be sensitive."""
    config = attrs.evolve(CONFIG, classes=Classes(default="pii, phi"))
    assert facts_of(config, {}, {"model": "m"}, Principal()).classes == {"pii", "phi"}


def test_no_header_means_the_default_class():
    """A named class replaces it."""
    assert facts().classes == {"internal"}
    assert facts({NAME: "public"}).classes == {"public"}


def test_capabilities_come_from_header_and_body():
    """Every tag of the header is included, and of the body those that some backend of the router has."""
    assert facts({"x-llmkube-capabilities": "Chat, LONG"}).capabilities == {"chat", "long"}
    image = {"model": "m", "messages": [{"content": [{"type": "image_url"}]}], "tools": [{}]}
    assert facts(body=image).capabilities == {"vision"}  # no backend has tools
    for body in (
        {"input": [{"type": "input_image"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        {"messages": [{"content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
        {"system": [{"type": "image"}], "messages": []},
    ):
        assert facts(body=body).capabilities == {"vision"}, body


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "image_url"},
        {"messages": [None, 1, "x", {"content": "image_url"}, {"content": {"type": "image_url"}}]},
        {"messages": [{"type": ["image_url"], "content": [[{"type": "image_url"}]]}]},
        {"model": ["m"], "messages": {}},
    ],
)
def test_a_body_of_any_shape_is_read(body):
    """A body without such parts needs nothing, and no part of it raises an error."""
    assert facts(body=body).capabilities == frozenset()
    assert facts(body=body).model == ""


@pytest.mark.parametrize(("levels", "capabilities"), [(8, {"vision"}), (9, set()), (5000, set())])
def test_depth_has_a_bound(levels, capabilities):
    """A deeply nested body does not exhaust the stack."""
    part = {"type": "image"}
    for _ in range(levels):
        part = {"content": [part]}
    assert facts(body={"messages": [part]}).capabilities == capabilities


def test_a_request_without_a_body_has_facts():
    """A list of models is requested by GET."""
    asked = facts_of(CONFIG, {"x-llmkube-region": "EU, us"}, None, Principal(team="red"))
    assert (asked.model, asked.regions, asked.principal.team) == ("", {"eu", "us"}, "red")


def test_headers_are_not_shown():
    """They contain keys of clients, and facts are logged."""
    assert "hunter2" not in repr(facts({"authorization": "Bearer hunter2"}))

"""Backends that may continue an answer: only those that the request is permitted to use."""

import pytest

from llmkube.router.config.routing_config import RoutingConfig
from llmkube.router.continuation.joined_answer import can_continue, continuation_targets
from llmkube.router.policy.permits import permits_for
from llmkube.router.policy.request_facts import RequestFacts
from router.proxy.router_lab import cloud, local


def permits(*backends):
    config = RoutingConfig(name="a/b", backends={each.name: each for each in backends})
    return tuple(permits_for(config, RequestFacts(model="m")).allowed.values())


def names(order, broken):
    return [each.backend.name for each in continuation_targets(order, broken)]


def test_engines_of_the_same_model_come_first_and_the_dead_one_last():
    """The order is the decision's; backends of another or an unknown model are excluded."""
    order = permits(
        local("a", model_digest="x"),
        local("other", model_digest="y"),
        local("b", model_digest="x"),
        local("unknown"),
        cloud("cloud", model_digest="x"),
    )
    assert names(order, order[0]) == ["b", "a"]
    assert names(order, order[2]) == ["a", "b"]


def test_a_backend_of_unknown_model_continues_only_its_own_answer():
    """Two unknown models are not the same one."""
    order = permits(local("a"), local("b"))
    assert names(order, order[0]) == ["a"]


def test_what_is_not_permitted_is_no_place():
    """Only permits that were given are returned, unchanged."""
    allowed = permits(local("a", model_digest="x"), local("b", model_digest="x"))
    assert set(continuation_targets(allowed[:1], allowed[0])) <= {allowed[0]}


@pytest.mark.parametrize(
    ("backend", "fingerprint", "does"),
    [
        (local("a", model_digest="x"), None, True),
        (local("a"), "b9999-0123abc", True),
        (local("a"), "b0-unknown", True),
        (local("a"), "fp_44709d6fcb", False),
        (local("a"), None, False),
        (local("a"), 7, False),
        (cloud("a"), "b9999-0123abc", False),
        (cloud("a", model_digest="x"), "b1-x", False),
    ],
)
def test_llama_cpps_server_continues_and_providers_do_not(backend, fingerprint, does):
    """The config decides, or the build that the engine reports."""
    assert can_continue(backend, fingerprint) is does

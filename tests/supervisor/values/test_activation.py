import math

import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.wire.reasons import Reason
from llmkube.runtimes.swap import SHARE_SECONDS
from llmkube.supervisor.values.activation import MAX_TENANTS, Activation, mode_of, unused_fields
from llmkube.supervisor.values.desired import Desired, Idle

MODEL = decode(Model, {"metadata": {"name": "m", "namespace": "ns"}, "spec": {"source": "builtin://demo"}})
IDLE = Activation(on_request=True, wanted=False)
LOADED = Activation(on_request=True, used_at=100.0)
FAILED = Idle(Reason.CRASH_LOOP, "the engine exited")


def desired(uid="u", annotations=None, conditions=(), **spec):
    metadata = {"name": "chat", "namespace": "ns", "uid": uid, "annotations": annotations or {}}
    status = {"conditions": [{"type": each, "status": "False", "reason": "Idle"} for each in conditions]}
    return Desired(
        decode(InferenceService, {"metadata": metadata, "spec": {"modelRef": "m"} | spec, "status": status}), MODEL
    )


@pytest.mark.parametrize(
    ("spec", "default", "mode"),
    [
        ({}, "Always", "Always"),
        ({}, "OnRequest", "OnRequest"),
        ({"activation": {"mode": "Always"}}, "OnRequest", "Always"),
        ({"activation": {"mode": "OnRequest"}}, "Always", "OnRequest"),
        ({"activation": {"mode": "OnRequest"}, "hosts": {"modelRef": "m", "replicas": 1}}, "Always", "Always"),
    ],
)
def test_the_spec_overrides_the_host(spec, default, mode):
    assert mode_of(desired(**spec), default) == mode


@pytest.mark.parametrize(
    ("mode", "given", "unused"),
    [
        ("OnRequest", {"mode": "OnRequest", "idleTimeout": "9s", "maxHold": "9s"}, ()),
        ("OnRequest", {"idleTimeout": "9s", "pin": True}, ("spec.activation.idleTimeout",)),
        ("Always", {"idleTimeout": "9s", "maxHold": "9s"}, ("spec.activation.idleTimeout", "spec.activation.maxHold")),
        ("Always", {"mode": "OnRequest", "pin": True}, ("spec.activation.mode",)),
        ("Always", {"mode": "Always"}, ()),
    ],
)
def test_fields_without_effect_are_named(mode, given, unused):
    assert unused_fields(desired(activation=given).service.spec, mode) == unused


@pytest.mark.parametrize(
    ("activation", "busy_at", "due"),
    [
        (LOADED, 90.0, math.inf),
        (attrs.evolve(LOADED, idle_seconds=30.0), 90.0, 130.0),
        (attrs.evolve(LOADED, idle_seconds=30.0), 120.0, 150.0),  # it has worked for a client of its own endpoint
        (attrs.evolve(LOADED, idle_seconds=30.0, requests=1), 90.0, math.inf),
        (attrs.evolve(LOADED, idle_seconds=30.0), None, math.inf),  # it is loading
        (attrs.evolve(LOADED, idle_seconds=30.0, pinned=True), 90.0, math.inf),
        (attrs.evolve(LOADED, idle_seconds=30.0, wanted=False), 90.0, math.inf),
        (attrs.evolve(LOADED, idle_seconds=30.0, on_request=False), 90.0, math.inf),
        (LOADED.keep(5.0), 90.0, 105.0),
        (attrs.evolve(LOADED, idle_seconds=30.0).keep(None), 90.0, math.inf),
        (attrs.evolve(LOADED, pinned=True).keep(5.0), 90.0, math.inf),
        (attrs.evolve(LOADED, pinned=True).keep(0.0), 90.0, 100.0),
        (LOADED.keep(0.0), None, 100.0),  # a user's unload ends a load
        (attrs.evolve(LOADED, requests=1).keep(0.0), 90.0, math.inf),
    ],
)
def test_when_a_model_is_unloaded(activation, busy_at, due):
    assert activation.due_at(busy_at) == due


@pytest.mark.parametrize(
    ("before", "after", "awaited"),
    [
        (None, desired(), True),
        (None, desired(conditions=["Loaded"]), False),  # an agent without its journal: others may be resident
        (desired(), desired(contextSize=512), False),
        (desired(), desired(uid="v"), True),
        (desired(replicas=0), desired(), True),
        (desired(), desired(annotations={"inference.llmkube.dev/load-requested-at": "now"}), True),
        (desired(annotations={"inference.llmkube.dev/load-requested-at": "then"}), desired(), False),
        (desired(), desired(activation={"pin": True}), True),
        (desired(), desired(activation={"mode": "Always"}), True),
    ],
)
def test_what_loads_a_model_without_a_request(before, after, awaited):
    """A new service, a start, a request to load, a pin and the other mode; no mere edit."""
    found = IDLE.with_spec(before, after, "OnRequest")
    assert (found.awaited, found.wanted) == (awaited, awaited)


@pytest.mark.parametrize(
    ("before", "after", "due"),
    [
        ({}, {"unload": "2"}, 100.0),
        ({"unload": "2"}, {"unload": "2"}, math.inf),
        ({"unload": "2"}, {"unload": "3"}, 100.0),
        ({}, {"load": "2", "unload": "3"}, 100.0),
        ({}, {"load": "3", "unload": "2"}, math.inf),  # the newest request of the user
        ({"unload": "2"}, {"load": "3", "unload": "2"}, math.inf),
    ],
)
def test_a_user_unloads_a_model(before, after, due):
    """It is unloaded once its requests have ended, and the next one loads it again."""
    old, new = (
        desired(annotations={f"inference.llmkube.dev/{name}-requested-at": at for name, at in each.items()})
        for each in (before, after)
    )
    assert not new.has_same_spec(old) or before == after
    asked = LOADED.with_spec(old, new, "OnRequest")
    assert asked.due_at(90.0) == due
    assert attrs.evolve(asked, requests=1).due_at(90.0) == math.inf
    assert asked.unload().begin(200.0).end(210.0, has_memory=True).due_at(205.0) == math.inf
    assert IDLE.with_spec(old, new, "OnRequest").kept_seconds is None
    assert LOADED.with_spec(old, new, "Always").due_at(90.0) == math.inf


def test_requests_and_failures():
    """A request loads it, but not during the back-off, and a load that waits for memory ends with its requests."""
    asked = IDLE.begin(1.0)
    assert (asked.wanted, asked.usage.in_use) == (True, True)
    assert not asked.end(2.0, has_memory=False).wanted
    assert asked.end(2.0, has_memory=True).wanted
    assert asked.begin(1.5).end(2.0, has_memory=False).wanted
    for kept in (asked.load(), asked.keep(None), attrs.evolve(asked, pinned=True)):
        assert kept.end(2.0, has_memory=False).wanted
    failed = asked.fail(60.0, FAILED)
    assert not failed.begin(59.0).wanted
    assert failed.begin(60.0).wanted
    assert failed.load().wanted
    assert failed.with_spec(desired(), desired(contextSize=512), "OnRequest").wanted
    assert Activation().fail(60.0, FAILED).wanted


def test_tenants_are_known_while_they_use_it_and_for_a_while_after():
    """Each is there once, in the order of their arrival, and only the newest ones are remembered."""
    both = IDLE.begin(1.0, "a").begin(2.0, "b").begin(3.0, "a").begin(4.0)
    assert list(both.usage.tenants.items()) == [("a", math.inf), ("b", math.inf)]
    ended = both.end(5.0, has_memory=True).end(6.0, has_memory=True, tenant="a")
    assert ended.tenants == {"a": 6.0, "b": math.inf}
    assert list(ended.begin(7.0, "a").tenants) == ["b", "a"]
    assert ended.begin(6.0 + SHARE_SECONDS, "c").tenants == {"b": math.inf, "c": math.inf}
    many = ended
    for number in range(2 * MAX_TENANTS):
        many = many.begin(8.0, f"t{number}").end(8.0, has_memory=True, tenant=f"t{number}")
    assert len(many.tenants) == MAX_TENANTS


def test_what_stays_wanted_after_an_eviction():
    """A service returns if requests use it, a user waits for it, or it is pinned; otherwise it is idle."""
    assert not LOADED.displace().wanted
    for used in (LOADED.begin(0.0), LOADED.load(), LOADED.keep(None), attrs.evolve(LOADED, pinned=True), Activation()):
        assert used.displace().wanted

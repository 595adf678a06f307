"""Running pods are replaced when nobody uses them, or when they have waited long enough; never without a cause."""

import pytest
import trio

from controller.cluster import SETTLED
from controller.objects import NOW
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS, deployment_of, plan, pod, pod_service
from llmkube.controller.reconcile import idleness
from llmkube.controller.reconcile.rollout_gate import IDLE_POLL_SECONDS
from llmkube.controller.render.labels import RESTARTED, TEMPLATE
from llmkube.controller.render.workload import deployment
from llmkube.controller.status.rollout import aged_in_seconds, edit_patience_seconds, is_idle
from llmkube.k8s.workloads import Deployment

NAMES = ("llamacpp:requests_processing", "llamacpp:requests_deferred")
IDLE = "# HELP x y\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
BUSY = IDLE.replace("processing 0", "processing 1")
RUNNING = {"phase": "Running", "podIP": "10.0.0.7"}


# -- what is decided ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "idle"),
    [
        (IDLE, True),
        (BUSY, False),
        (IDLE.replace("deferred 0", "deferred 2.0"), False),
        (IDLE.replace("processing 0", 'processing{model="a b} c"} 0'), True),
        (IDLE + 'llamacpp:requests_processing{model="x"} 3 1700000000\n', False),
        (IDLE.replace("processing 0", "processing NaN"), False),
        (IDLE.replace("processing 0", "processing"), False),
        ("llamacpp:requests_processing 0\n", False),
        ("llamacpp:requests_processing_total 5\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n", True),
        ("", False),
    ],
)
def test_only_an_engine_that_says_so_is_idle(text, idle):
    """Every metric has to be there and zero; what cannot be read may hide a request."""
    assert is_idle(text, NAMES) is idle


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (None, 0),
        ({}, 0),
        ({"waitForIdle": True}, 300),
        ({"waitForIdle": True, "idleTimeoutSeconds": 20}, 20),
        ({"waitForIdle": True, "idleTimeoutSeconds": 0}, 300),
        ({"waitForIdle": True, "force": True}, 0),
    ],
)
def test_an_edit_waits_as_long_as_its_policy_says(policy, seconds):
    """Without a policy, and with force, an edit waits for nobody."""
    spec = {} if policy is None else {"rolloutPolicy": policy}
    assert edit_patience_seconds(pod_service(**spec)) == seconds


@pytest.mark.parametrize(
    ("live", "pods", "seconds"),
    [
        (deployment_of(1, ready=1), [pod()], 3600),
        (deployment_of(1, ready=1), [pod(), pod(name="chat-2", deleted=True)], 3600),
        (deployment_of(1, ready=0), [pod()], None),
        (deployment_of(2, ready=2, updated=1), [pod()], None),
        (deployment_of(1, ready=1, observed=0), [pod()], None),
        (deployment_of(1, ready=1), [], None),
    ],
)
def test_age_counts_while_all_pods_answer(live, pods, seconds):
    """An hour-old pod that may get two hours old has one more; while pods change, nobody's age counts."""
    assert aged_in_seconds(pod_service(maxPodLifetimeSeconds=7200), live, pods, NOW) == seconds
    assert aged_in_seconds(pod_service(), live, pods, NOW) is None
    if seconds:
        assert aged_in_seconds(pod_service(maxPodLifetimeSeconds=60), live, pods, NOW) == 0


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.7", "http://10.0.0.7:8080/metrics"), ("fd00::7", "http://[fd00::7]:8080/metrics")]
)
def test_a_pod_is_asked_at_its_address_of_either_family(address, url):
    """An address of IPv6 stands in brackets, or its last part would be the port."""
    assert idleness.pod_url(pod(podIP=address), 8080, "/metrics") == url


def test_another_moment_is_another_template():
    """A restart changes the pods' template, and what tells templates apart; a policy about replacing them does not."""
    service = pod_service(maxPodLifetimeSeconds=60)
    before = deployment(service, plan(), SETTINGS, replicas=1)
    after = deployment(service, plan(), SETTINGS, replicas=1, restarted="2025-06-01T12:00:00Z")
    assert before["metadata"]["annotations"][TEMPLATE] != after["metadata"]["annotations"][TEMPLATE]
    assert after["spec"]["template"]["metadata"]["annotations"][RESTARTED] == "2025-06-01T12:00:00Z"
    plain = deployment(pod_service(), plan(), SETTINGS, replicas=1)
    assert plain["metadata"]["annotations"][TEMPLATE] == before["metadata"]["annotations"][TEMPLATE]
    assert RESTARTED not in plain["metadata"]["annotations"]


# -- in a cluster ------------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(monkeypatch):
    """What the engines answer, and where they were asked."""
    said = {"text": BUSY, "asked": []}

    async def read(url):
        await trio.lowlevel.checkpoint()
        said["asked"].append(url)
        return said["text"]

    monkeypatch.setattr(idleness, "read_text", read)
    return said


async def context(hands) -> bool:
    """Whether the Deployment has the edit."""
    [container] = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]
    return "8192" in container["args"]


async def deferred(hands) -> str:
    conditions = (await hands.cluster.service()).status.conditions
    return next((one.status for one in conditions if one.type == "RolloutDeferred"), "")


async def test_an_edit_waits_for_the_last_request(autojump_clock, engine):
    """While a replica is busy the template stays, and the replica count does not; then the edit comes through."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy)
        await hands.service_pod(RUNNING)
        assert engine["asked"] == []
        await hands.create_service(rolloutPolicy=policy, contextSize=8192, replicas=2)
        await trio.sleep(600)
        assert (await context(hands), await deferred(hands)) == (False, "True")
        assert (await hands.json(Deployment))["spec"]["replicas"] == 2
        assert set(engine["asked"]) == {"http://10.0.0.7:8080/metrics"}
        engine["text"] = IDLE
        await trio.sleep(IDLE_POLL_SECONDS + SETTLED)
        assert (await context(hands), await deferred(hands)) == (True, "False")


@pytest.mark.parametrize("policy", [{"rolloutPolicy": {"waitForIdle": True}}, {"maxPodLifetimeSeconds": 7200}])
async def test_a_policy_that_a_busy_service_is_given_defers_nothing(autojump_clock, engine, policy):
    """That pods shall be replaced otherwise from now on replaces none, and so nothing waits for their requests."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.service_pod(RUNNING)
        generation = (await hands.json(Deployment))["metadata"]["generation"]
        await hands.create_service(**policy)
        await trio.sleep(SETTLED)
        assert (await deferred(hands), engine["asked"]) == ("False", [])
        assert (await hands.json(Deployment))["metadata"]["generation"] == generation


@pytest.mark.parametrize(
    ("edit", "where"),
    [({"modelRef": "phii"}, "Progressing/ModelNotFound"), ({"runtime": "vllm"}, "Ready/InferenceReady")],
)
async def test_an_edit_that_was_replaced_by_one_that_cannot_be_waits_no_more(autojump_clock, engine, edit, where):
    """A Model that is not there, a format that does not fit: what runs stays, and nothing is said to be waited for."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy)
        await hands.service_pod(RUNNING)
        await hands.create_service(rolloutPolicy=policy, contextSize=8192)
        await trio.sleep(SETTLED)
        assert await deferred(hands) == "True"
        await hands.create_service(rolloutPolicy=policy, contextSize=8192, **edit)
        assert (await hands.where(), await deferred(hands)) == (where, "False")
        assert not await context(hands)


async def test_an_edit_waits_no_longer_than_it_may(autojump_clock, engine):
    """After its time an edit interrupts whoever is there; with force it never waited."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 60}
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy)
        await hands.service_pod(RUNNING)
        await hands.create_service(rolloutPolicy=policy, contextSize=8192)
        await trio.sleep(50)
        assert not await context(hands)
        await trio.sleep(20)
        assert await context(hands)
        await hands.roll_out()
        await hands.create_service(rolloutPolicy={**policy, "force": True})
        await trio.sleep(SETTLED)
        assert not await context(hands)


async def test_slow_pods_hold_no_edit_for_ever(autojump_clock, monkeypatch):
    """Nine replicas that are idle, and take four seconds each to say so, are asked at once and then replaced."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}

    async def read_slowly(_url):
        await trio.sleep(idleness.ASK_SECONDS - 1)
        return IDLE

    monkeypatch.setattr(idleness, "read_text", read_slowly)
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy, replicas=9)
        for number in range(1, 10):
            await hands.service_pod({"phase": "Running", "podIP": f"10.0.0.{number}"}, number=number)
        await hands.create_service(rolloutPolicy=policy, replicas=9, contextSize=8192)
        await trio.sleep(60)
        assert await context(hands)
        assert not hands.cluster.reconciles("inferenceservice", "error")


@pytest.mark.parametrize("busy", [None, 0, 1, 2])
async def test_one_busy_pod_keeps_all(busy, autojump_clock, monkeypatch):
    """Of three pods that run any one that has a request, or does not answer, counts; one that is going does not."""
    urls = [f"http://10.0.0.{number}:8080/metrics" for number in range(3)]
    texts = {url: "" if busy == 2 else BUSY for index, url in enumerate(urls) if index == busy}

    async def read(url):
        await trio.lowlevel.checkpoint()
        return texts.get(url, IDLE)

    monkeypatch.setattr(idleness, "read_text", read)
    pods = [pod(name=f"chat-{number}", phase="Running", podIP=f"10.0.0.{number}") for number in range(3)]
    going = pod(name="chat-9", phase="Running", deleted=True)
    assert await idleness.are_idle(plan(busy_metrics=NAMES), [*pods, going]) is (busy is None)


@pytest.mark.parametrize("timeout", [None, 100])
async def test_old_pods_are_replaced_once_they_are_idle(autojump_clock, engine, timeout):
    """At its age a pod that is busy stays, for ever or for its time; an idle one is replaced, once an age."""
    spec = {"maxPodLifetimeSeconds": 1000}
    if timeout is not None:
        spec["maxPodLifetimeIdleTimeoutSeconds"] = timeout
    async with open_pods() as hands:
        await hands.bring_up(**spec)
        await hands.service_pod(RUNNING)
        before = (await hands.json(Deployment))["metadata"]["generation"]
        await trio.sleep(950)
        assert (engine["asked"], await deferred(hands)) == ([], "False")
        await trio.sleep(90)
        assert await deferred(hands) == "True"
        await trio.sleep(200)
        changed = (await hands.json(Deployment))["metadata"]["generation"] > before
        assert changed is (timeout is not None)
        engine["text"] = IDLE
        await trio.sleep(IDLE_POLL_SECONDS + SETTLED)
        live = await hands.json(Deployment)
        assert live["metadata"]["generation"] == before + 1
        assert RESTARTED in live["spec"]["template"]["metadata"]["annotations"]
        await trio.sleep(600)
        assert (await hands.json(Deployment))["metadata"]["generation"] == before + 1


async def test_an_engine_that_cannot_tell_is_named(autojump_clock, engine):
    """Where nobody can say whether there are requests, waiting would be for ever: the field is named, the edit made."""
    policy = {"waitForIdle": True}
    body = {"runtime": "generic", "image": "x", "args": ["a"], "rolloutPolicy": policy}
    async with open_pods() as hands:
        await hands.bring_up(**body)
        await hands.create_service(**{**body, "args": ["b"]})
        await trio.sleep(SETTLED)
        [container] = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["b"]
        [found] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert "spec.rolloutPolicy.waitForIdle (generic does not tell" in found.message

"""Running pods are replaced when they have no request, or have waited long enough; never without a cause."""

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.objects import NOW
from controller.podcluster import open_pods
from controller.podobjects import SETTINGS, deployment_of, pod, pod_service
from llmkube.controller.reconcile import pod_polling
from llmkube.controller.reconcile.rollout_gate import (
    IDLE_POLL_SECONDS,
    edit_idle_timeout_seconds,
    is_loading,
    seconds_until_max_age,
)
from llmkube.controller.render.labels import RESTARTED
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import Deployment
from llmkube.runtimes.container.images import Images
from llmkube.runtimes.registry import IMAGES as PINNED

IDLE = "# HELP x y\nllamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n"
BUSY = IDLE.replace("processing 0", "processing 1")
BUNDLED = "example.org/llmkube-llama:1"
RUNNING = {"phase": "Running", "podIP": "10.0.0.7"}


@pytest.fixture
def engine(monkeypatch):
    """The engines' metrics, and the addresses that were queried."""
    engines = {"text": BUSY, "asked": []}

    async def read(url):
        await trio.lowlevel.checkpoint()
        engines["asked"].append(url)
        return engines["text"]

    monkeypatch.setattr(pod_polling, "read_text", read)
    return engines


async def context(hands) -> bool:
    """Return whether the Deployment has the edit."""
    [container, _] = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]
    return "2048" in container["args"]


async def deferred(hands) -> str:
    conditions = (await hands.cluster.service()).status.conditions
    return next((one.status for one in conditions if one.type == "RolloutDeferred"), "")


async def test_an_edit_waits_for_the_last_request(autojump_clock, engine):
    """While a replica is busy the template stays, and the replica count does not; then the edit is applied."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy)
        await hands.service_pod(RUNNING)
        assert engine["asked"] == []
        await hands.create_service(rolloutPolicy=policy, contextSize=2048, replicas=2)
        await trio.sleep(600)
        assert (await context(hands), await deferred(hands)) == (False, "True")
        assert (await hands.json(Deployment))["spec"]["replicas"] == 2
        assert set(engine["asked"]) == {"http://10.0.0.7:8080/metrics"}
        engine["text"] = IDLE
        await trio.sleep(IDLE_POLL_SECONDS + SETTLED)
        assert (await context(hands), await deferred(hands)) == (True, "False")


@pytest.mark.parametrize("policy", [{"rolloutPolicy": {"waitForIdle": True}}, {"maxPodLifetimeSeconds": 7200}])
async def test_a_policy_that_a_busy_service_is_given_defers_nothing(autojump_clock, engine, policy):
    """Another policy for replacing pods replaces none, and so nothing waits for their requests."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.service_pod(RUNNING)
        generation = (await hands.json(Deployment))["metadata"]["generation"]
        await hands.apply(**policy)
        assert (await deferred(hands), engine["asked"]) == ("False", [])
        assert (await hands.json(Deployment))["metadata"]["generation"] == generation


@pytest.mark.parametrize(
    ("edit", "where"),
    [({"modelRef": "phii"}, "Progressing/ModelNotFound"), ({"runtime": "vllm"}, "Ready/InferenceReady")],
)
async def test_an_edit_replaced_by_an_invalid_one_waits_no_more(autojump_clock, engine, edit, where):
    """With a missing Model or an unsuitable format the running pods stay, and no wait is reported."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 3600}
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy)
        await hands.service_pod(RUNNING)
        await hands.apply(rolloutPolicy=policy, contextSize=2048)
        assert await deferred(hands) == "True"
        await hands.create_service(rolloutPolicy=policy, contextSize=2048, **edit)
        assert (await hands.where(), await deferred(hands)) == (where, "False")
        assert not await context(hands)


async def test_an_edit_waits_no_longer_than_it_may(autojump_clock, engine):
    """After its deadline an edit interrupts requests; with force it never waited."""
    policy = {"waitForIdle": True, "idleTimeoutSeconds": 60}
    async with open_pods() as hands:
        await hands.bring_up(rolloutPolicy=policy)
        await hands.service_pod(RUNNING)
        await hands.create_service(rolloutPolicy=policy, contextSize=2048)
        await trio.sleep(50)
        assert not await context(hands)
        await trio.sleep(20)
        assert await context(hands)
        await hands.roll_out()
        await hands.apply(rolloutPolicy={**policy, "force": True})
        assert not await context(hands)


@pytest.mark.parametrize("timeout", [None, 100])
async def test_old_pods_are_replaced_once_they_are_idle(autojump_clock, engine, timeout):
    """At its age a busy pod stays, for ever or for its time; an idle one is replaced, once an age."""
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


async def test_an_engine_without_a_request_count_is_reported(autojump_clock, engine):
    """If requests cannot be counted, the wait would never end: the field is reported, and the edit applied."""
    policy = {"waitForIdle": True}
    body = {"runtime": "generic", "image": "x", "args": ["a"], "rolloutPolicy": policy}
    async with open_pods() as hands:
        await hands.bring_up(**body)
        await hands.apply(**{**body, "args": ["b"]})
        [container, _] = (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]
        assert container["args"] == ["b"]
        [found] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert "spec.rolloutPolicy.waitForIdle (generic has no metric" in found.message


@asynccontextmanager
async def upgraded(hands, image=SETTINGS.image, engines=SETTINGS.images):
    """Run a controller of another LLMKube, or with other images of engines, in place of the current one."""
    hands.cluster.bury()
    settings = ControllerSettings(workloads=attrs.evolve(SETTINGS, image=image, images=engines))
    async with trio.open_nursery() as nursery:
        await nursery.start(hands.cluster.run_controller, settings)
        await trio.sleep(SETTLED)
        yield
        nursery.cancel_scope.cancel()


async def images(hands):
    return [one["image"] for one in (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"]]


@pytest.mark.parametrize("keyed", [False, True])
async def test_an_upgrade_alone_replaces_no_pod_that_serves(autojump_clock, keyed):
    """Another image of ours comes with the next edit; the key proxy is updated at once."""
    spec = {"apiKeySecretRef": {"name": "keys", "key": "k"}} if keyed else {}
    async with open_pods() as hands:
        await hands.bring_up(**spec)
        engine, before = await images(hands)
        async with upgraded(hands, "example.org/llmkube:next"):
            after = [engine, "example.org/llmkube:next"]
            assert await images(hands) == (after if keyed else [engine, before])
            if not keyed:
                await hands.apply(contextSize=2048, **spec)
                assert (await images(hands), await context(hands)) == (after, True)


@pytest.mark.ci
@pytest.mark.parametrize("before", [{}, {"llamacpp": "example.org/mine"}])
async def test_an_image_for_cpus_comes_with_the_next_edit(autojump_clock, before):
    """Serving pods keep the earlier image, for however long; an edit has the new one."""
    async with open_pods() as hands:
        async with upgraded(hands, engines=Images(before)):
            await hands.bring_up(accelerator="cpu")
            engine, drain = await images(hands)
        assert engine == before.get("llamacpp", PINNED["llamacpp"])
        async with upgraded(hands, engines=Images({**before, "llamacpp-cpu": BUNDLED})):
            await trio.sleep(3600)
            assert await images(hands) == [engine, drain]
            await hands.apply(contextSize=2048)
            assert (await images(hands), await context(hands)) == ([BUNDLED, drain], True)


async def test_an_image_for_all_stacks_is_replaced_at_once(autojump_clock):
    """Only the image for CPUs waits for an edit: another image of the engine's own name is the operator's choice."""
    async with open_pods() as hands:
        await hands.bring_up(accelerator="cpu")
        async with upgraded(hands, engines=Images({"llamacpp": "example.org/mine"})):
            assert (await images(hands))[0] == "example.org/mine"


async def test_pods_that_do_not_serve_get_the_current_image(autojump_clock):
    """An image that is deleted from its registry keeps no service down: pods that are not ready use the new one."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.roll_out(ready=0)
        async with upgraded(hands, "example.org/llmkube:next"):
            assert "example.org/llmkube:next" in await images(hands)


@pytest.mark.parametrize(
    ("ready", "progressing", "loading"), [(0, "True", True), (1, "True", True), (2, "True", False), (0, "False", False)]
)
def test_a_stuck_rollout_is_not_protected_for_ever(ready, progressing, loading):
    """Pods load until all of them answer, or the rollout has passed its deadline: a drain must not wait for ever."""
    conditions = [{"type": "Progressing", "status": progressing, "reason": "x", "message": "y"}]
    status = {"readyReplicas": ready, "conditions": conditions}
    live = decode(Deployment, {"metadata": {"name": "chat", "namespace": "ml"}, "status": status})
    assert is_loading(live, 2) is loading


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
def test_an_edit_waits_as_long_as_its_policy_allows(policy, seconds):
    """Without a policy, and with force, an edit does not wait."""
    spec = {} if policy is None else {"rolloutPolicy": policy}
    assert edit_idle_timeout_seconds(pod_service(**spec)) == seconds


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
def test_age_is_checked_while_all_pods_answer(live, pods, seconds):
    """An hour-old pod with a limit of two hours has one more; while pods change, age is not checked."""
    assert seconds_until_max_age(pod_service(maxPodLifetimeSeconds=7200), live, pods, NOW) == seconds
    assert seconds_until_max_age(pod_service(), live, pods, NOW) is None
    if seconds:
        assert seconds_until_max_age(pod_service(maxPodLifetimeSeconds=60), live, pods, NOW) == 0

import pytest
import trio

from cli.memory_cluster import open_demo, write_status
from llmkube.cli.view.readiness import SETTLE_SECONDS, STALE_SECONDS, Readiness
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import State, service_health

DEMO = Key("default", "demo")


class Steps:
    """A display that records what it shows."""

    def __init__(self):
        self.printed = []

    def show_step(self, step, detail):
        self.printed.append(f"{step}: {detail}")

    def done(self, step, detail, seconds):
        self.printed.append(f"{step} done")


class World:
    def __init__(self, client, caches):
        self.client = client
        self.caches = caches
        self.steps = Steps()

    async def wait(self, *, changed=False, loads=False, fresh=("Model", "InferenceService")):
        readiness = Readiness(
            caches=self.caches,
            key=DEMO,
            assess=service_health,
            display=self.steps,
            detail=lambda health: health.headline,
            may_be_stale=lambda health: health.faulty_kind not in fresh,
            changed=changed,
            loads=loads,
            applied=bool(fresh),
        )
        with trio.fail_after(60):
            return await readiness.wait()

    async def report(self, *what, **status):
        await write_status(self.client, *what, **status)

    async def become_ready(self):
        await self.report(Model, ("Fetched", "True", "Fetched", ""))
        lines = (("Accepted", "True", "Accepted", ""), ("Loaded", "True", "Loaded", ""))
        await self.report(InferenceService, *lines, phase="Ready")


@pytest.fixture
async def world():
    async with open_demo() as (client, caches):
        yield World(client, caches)


async def test_every_step_is_shown(autojump_clock, world):
    """Steps of a new service come in order with the download's progress, and the wait ends at Ready."""
    async with trio.open_nursery() as nursery:

        async def wait():
            assert (await world.wait()).state is State.READY

        nursery.start_soon(wait)
        await trio.sleep(1)
        await world.report(Model, ("Fetched", "False", "Fetching", "downloading: 42 %"))
        await trio.sleep(1)
        await world.become_ready()
    lines = list(dict.fromkeys(world.steps.printed))
    assert lines == ["fetch: waiting for the controller to process it", "fetch: downloading: 42 %", *lines[2:]]
    assert [each for each in lines if each.endswith("done")] == ["fetch done", "load done", "ready done"]


async def test_a_new_services_failure_ends_at_once(autojump_clock, world):
    """A failure of a new object is reported without delay, in the agent's words."""
    await world.report(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    began = trio.current_time()
    health = await world.wait()
    assert (health.reason, health.message, health.faulty_kind) == ("DigestMismatch", "it has abc", "Model")
    assert trio.current_time() == began


async def test_failure_of_an_unchanged_model_has_to_persist(autojump_clock, world):
    """When only the service was changed, an earlier failure of its Model gets time to clear."""
    await world.report(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    began = trio.current_time()
    assert (await world.wait(fresh=("InferenceService",))).reason == "DigestMismatch"
    assert trio.current_time() - began >= STALE_SECONDS


async def test_old_failure_has_to_persist(autojump_clock, world):
    """A failure from before the change gets time to clear, and is reported if it does not."""
    await world.report(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    began = trio.current_time()
    assert (await world.wait(changed=True, fresh=())).reason == "DigestMismatch"
    assert STALE_SECONDS <= trio.current_time() - began <= 2 * STALE_SECONDS


async def test_earlier_failure_is_not_shown_as_that_of_the_change(autojump_clock, world):
    """It is the result only if it persists."""
    await world.report(Model, ("Fetched", "True", "Fetched", ""))
    await world.report(InferenceService, ("Accepted", "True", "Accepted", ""), ("Loaded", "False", "Hung", "old words"))
    await trio.testing.wait_all_tasks_blocked()
    health = await world.wait(changed=True, fresh=("InferenceService",))
    assert (health.reason, health.message) == ("Hung", "old words")
    assert set(world.steps.printed) == {"fetch done", "load: waiting for the change to take effect"}


async def test_old_failure_can_clear(autojump_clock, world):
    """A service that failed before the change and works after it is Ready."""
    await world.report(Model, ("Fetched", "False", "DigestMismatch", "it has abc"))
    async with trio.open_nursery() as nursery:

        async def wait():
            assert (await world.wait(changed=True, fresh=())).state is State.READY

        nursery.start_soon(wait)
        await trio.sleep(STALE_SECONDS / 2)
        await world.become_ready()


async def test_a_missing_host_is_given_time(autojump_clock, world):
    """A missing host may be an agent that is starting; it becomes a failure after some seconds."""
    await world.report(InferenceService, ("Available", "False", "NoHost", "no machine serves accelerator cpu"))
    began = trio.current_time()
    assert (await world.wait()).reason == "NoHost"
    assert trio.current_time() - began >= STALE_SECONDS
    assert "fetch: no machine serves accelerator cpu" in world.steps.printed


async def test_after_a_change_ready_has_to_hold(autojump_clock, world):
    """The old engine's last moment of readiness is not taken for the new engine's."""
    await world.become_ready()
    async with trio.open_nursery() as nursery:
        ended = []

        async def wait():
            assert (await world.wait(changed=True, fresh=())).state is State.READY
            ended.append(trio.current_time())

        began = trio.current_time()
        nursery.start_soon(wait)
        await trio.sleep(SETTLE_SECONDS / 2)
        lines = (
            ("Accepted", "True", "Accepted", ""),
            ("Loaded", "False", "Stopping", "the endpoint is being withdrawn"),
        )
        await world.report(InferenceService, *lines, phase="Ready")
        await trio.sleep(5)
        assert not ended
        await world.become_ready()
    assert ended[0] - began >= 5 + SETTLE_SECONDS


async def test_a_requested_load_is_awaited(autojump_clock, world):
    """An idle service is not taken for the result before the agent has begun the load, whose failure is the result."""
    await world.become_ready()
    accepted = ("Accepted", "True", "Accepted", "")
    await world.report(InferenceService, accepted, ("Loaded", "False", "Idle", "not loaded"), phase="Idle")
    await trio.sleep(1)  # the acknowledged write reaches the caches
    async with trio.open_nursery() as nursery:

        async def wait():
            assert (await world.wait(loads=True, fresh=())).reason == "CrashLoopBackOff"

        nursery.start_soon(wait)
        await trio.sleep(STALE_SECONDS - 1)
        await world.report(InferenceService, accepted, ("Loaded", "False", "CrashLoopBackOff", "it exited"))


async def test_service_that_stayed_ready_shows_no_steps(autojump_clock, world):
    """Deploying the same spec again prints no steps and does not wait."""
    await world.become_ready()
    await trio.sleep(1)  # the acknowledged write reaches the caches
    began = trio.current_time()
    assert (await world.wait(fresh=())).state is State.READY
    assert (trio.current_time(), world.steps.printed) == (began, [])


async def test_a_deleted_service_ends_the_wait(autojump_clock, world):
    """A delete by another client is reported at once."""
    async with trio.open_nursery() as nursery:

        async def wait():
            assert (await world.wait()).reason == "Deleted"

        nursery.start_soon(wait)
        await trio.sleep(1)
        await world.client.delete(InferenceService, DEMO)

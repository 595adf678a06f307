"""Pods that exist while requests need them: no arrival is lost to a scale-down, whatever fails meanwhile."""

import random
from typing import Any

import attrs
import pytest
import trio

from controller.cluster import SETTLED, utcnow
from controller.podcluster import Hands, open_pods
from controller.podobjects import SETTINGS
from lengths import SIM_SEEDS
from llmkube.base.mailbox import Mailbox
from llmkube.controller.informers import FRONT_DOOR_LABEL
from llmkube.controller.reconcile import pod_polling
from llmkube.controller.settings import ControllerSettings
from llmkube.k8s.builtins import EndpointSlice, Lease, Service
from llmkube.k8s.leases.scale_up_requests import INTERVAL_SECONDS, LINGER_SECONDS, ScaleUpRequests
from llmkube.k8s.leases.wanted_services import DURATION_SECONDS, LEASE_NAME, RECORD_PREFIX
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import SERVICE_NAME_LABEL
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, Pod

CHAT = Key("ml", "chat")
IDLE = 4.0
ON_REQUEST: dict[str, Any] = {"activation": {"mode": "OnRequest", "idleTimeout": f"{IDLE:g}s"}}
AUTOSCALED = ON_REQUEST | {"autoscaling": {"minReplicas": 0, "maxReplicas": 3}}
LOAD_SECONDS = 3.0
DRAIN_SECONDS = 10.0
RACES = 10


@attrs.define(eq=False)
class EnginePod:
    """A pod: it answers when it is ready, also while it drains, and not once it is gone."""

    name: str
    ready: bool = False
    leaving: bool = False
    gone: bool = False
    requests: int = 0
    answered: int = 0

    async def answer(self, seconds: float) -> None:
        assert not self.gone
        self.requests += 1
        await trio.sleep(seconds)
        self.requests -= 1
        self.answered += 1


@attrs.define(eq=False)
class Kubelet:
    """Plays the controllers of Kubernetes and the kubelet for one Deployment, and the endpoints that result."""

    hands: Hands
    rng: random.Random
    pods: list[EnginePod] = attrs.field(factory=list)
    made: int = 0
    endpoints: Mailbox[tuple[EnginePod, ...]] = attrs.field(factory=lambda: Mailbox(()))
    counts: list[int] = attrs.field(factory=list)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                live = await self.hands.client.get(Deployment, CHAT)
                if self.counts[-1:] != [live.spec.replicas]:
                    self.counts.append(live.spec.replicas)
                staying = [each for each in self.pods if not each.leaving]
                for _ in range(live.spec.replicas - len(staying)):
                    self.made += 1
                    self.pods.append(EnginePod(f"chat-{self.made}"))
                    nursery.start_soon(self._run_pod, self.pods[-1], self.made)
                for each in staying[live.spec.replicas :]:
                    each.leaving = True
                    nursery.start_soon(self._end_pod, each)
                ready = sum(each.ready and not each.leaving for each in self.pods)
                if (live.status.observed_generation, live.status.ready_replicas) != (live.metadata.generation, ready):
                    await self.hands.roll_out(ready=ready)
                self._publish()
                await trio.sleep(0.5)

    async def _run_pod(self, pod: EnginePod, number: int) -> None:
        await self.hands.service_pod({"phase": "Running", "podIP": f"10.0.0.{number}"}, number=number)
        await trio.sleep(self.rng.uniform(0.5, LOAD_SECONDS))
        pod.ready = True

    async def _end_pod(self, pod: EnginePod) -> None:
        began = trio.current_time()
        while trio.current_time() < began + DRAIN_SECONDS or pod.requests:  # noqa: ASYNC110 (as the container does)
            await trio.sleep(0.5)
        pod.gone = True
        self.pods.remove(pod)
        await self.hands.client.delete(Pod, Key("ml", pod.name))

    def _publish(self) -> None:
        ready = tuple(each for each in self.pods if each.ready and not each.leaving)
        if ready != self.endpoints.value:
            self.endpoints.put_nowait(ready)

    async def read_text(self, url: str) -> str:
        """Answer for the engine at this address."""
        await trio.lowlevel.checkpoint()
        name = f"chat-{url.removeprefix('http://10.0.0.').partition(':')[0]}"
        for pod in self.pods:
            if pod.name == name and pod.ready:
                return (
                    f"llamacpp:requests_processing {pod.requests}\nllamacpp:requests_deferred 0\n"
                    f"llamacpp:n_decode_total {pod.answered}\n"
                )
        return ""


@attrs.define(eq=False)
class FrontDoor:
    """A front door that sees endpoints late, holds what no pod can answer, and records it in its Lease."""

    kubelet: Kubelet
    requests: ScaleUpRequests
    lag: float
    seen: Mailbox[tuple[EnginePod, ...]] = attrs.field(factory=lambda: Mailbox(()))
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                await nursery.start(self.requests.run)
                task_status.started()

    async def _watch(self) -> None:
        version = -1
        while True:
            await self.kubelet.endpoints.wait_newer(version)
            version = self.kubelet.endpoints.version
            await trio.sleep(self.lag)
            self.seen.put_nowait(self.kubelet.endpoints.value)

    async def ask(self, seconds: float) -> None:
        with self.requests.using(str(CHAT), "") as hold:
            while True:
                there = next((each for each in self.seen.value if not each.gone), None)
                if there is not None:
                    return await there.answer(seconds)
                with hold():
                    await self.requests.wait_changed(str(CHAT))


def front_door(hands: Hands, kubelet: Kubelet, name: str, lag: float = 0.3) -> FrontDoor:
    door = FrontDoor(kubelet, None, lag)  # type: ignore[arg-type]
    client = hands.client

    async def wait() -> None:
        await door.seen.wait_newer(door.seen.version)

    door.requests = ScaleUpRequests(client, name, name, utcnow, lambda _: True, wait)
    return door


async def replicas(hands: Hands) -> int:
    return int((await hands.json(Deployment))["spec"]["replicas"])


async def owners(hands: Hands) -> set[tuple[str, str]]:
    """The field managers of the Deployment's number of pods."""
    entries = (await hands.client.get(Deployment, CHAT)).metadata.managed_fields
    return {(e["manager"], e["operation"]) for e in entries if "f:replicas" in e["fieldsV1"].get("f:spec", {})}


@pytest.mark.parametrize("spec", [ON_REQUEST | {"replicas": 2}, AUTOSCALED])
async def test_a_service_on_request_starts_at_zero_and_follows_its_front_doors(spec, autojump_clock, monkeypatch):
    """At zero it is Idle and available; a record in the Lease starts its pods; without requests they end."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        await hands.create_model()
        await hands.apply(**spec)
        await hands.end_job()
        assert await hands.where() == "Idle/Idle"
        assert await replicas(hands) == 0
        assert {manager for manager, _ in await owners(hands)} == {"llmkube-scaler"}
        status = (await hands.cluster.service()).status
        assert (status.ready_replicas, status.desired_replicas) == (0, 0)
        [available] = [each for each in status.conditions if each.type == "Available"]
        assert (available.status, available.reason) == ("True", "Idle")
        assert "front door" in available.message
        kubelet = Kubelet(hands, random.Random(1))
        monkeypatch.setattr(pod_polling, "read_text", kubelet.read_text)
        nursery.start_soon(kubelet.run)
        door = front_door(hands, kubelet, "one")
        await nursery.start(door.run)
        await door.ask(1.0)
        assert await replicas(hands) == (1 if "autoscaling" in spec else 2)
        await trio.sleep(LOAD_SECONDS)
        assert await hands.where() == "Ready/InferenceReady"
        await trio.sleep(LINGER_SECONDS + 3 * IDLE + SETTLED)
        assert kubelet.counts == [0, 1 if "autoscaling" in spec else 2, 0]
        assert await hands.where() == "Idle/Idle"
        assert {manager for manager, _ in await owners(hands)} == {"llmkube-scaler"}
        nursery.cancel_scope.cancel()


async def test_ownership_of_the_replicas_moves_before_the_field_leaves_the_manifest(autojump_clock):
    """Three pods stay three when the service becomes autoscaled or on request; afterwards the spec decides again."""
    async with open_pods() as hands:
        await hands.bring_up(replicas=3)
        assert await owners(hands) == {("llmkube-controller", "Apply")}
        for changed in ({"autoscaling": {"maxReplicas": 5}}, ON_REQUEST):
            await hands.apply(replicas=3, **changed)
            assert await replicas(hands) == 3
            assert await owners(hands) == {("llmkube-scaler", "Apply")}
            if "autoscaling" in changed:
                [scaler] = [await hands.json(HorizontalPodAutoscaler)]
                assert scaler["spec"]["minReplicas"] == 1
            await hands.apply(replicas=3)
            assert await replicas(hands) == 3
            assert ("llmkube-controller", "Apply") in await owners(hands)
        await hands.apply(replicas=2)
        assert await replicas(hands) == 2


async def test_an_engine_whose_metrics_cannot_be_read_is_not_idle(autojump_clock, monkeypatch):
    """It is not stopped, also while the controller cannot list the Leases of front doors."""

    async def read_nothing(_url):
        await trio.lowlevel.checkpoint()
        return ""

    monkeypatch.setattr(pod_polling, "read_text", read_nothing)
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.service_pod({"phase": "Running", "podIP": "10.0.0.1"})
        await hands.apply(**ON_REQUEST)
        await trio.sleep(20 * IDLE)
        assert await replicas(hands) == 1


DOORS = ("10.9.0.1", "10.9.0.2")


@attrs.define(eq=False)
class PlainService:
    """The EndpointSlices of a Service: that of its pods, as Kubernetes writes it a little late, and those of others."""

    hands: Hands
    kubelet: Kubelet
    empty: int = 0

    async def front_doors(self, *addresses: str, ready: bool = True) -> None:
        metadata = {"labels": {FRONT_DOOR_LABEL: "true"}}
        body = slice_body(*addresses, ready=ready, port=8099)
        await self.hands.cluster.apply_object(
            EndpointSlice, "gateway-x", {"metadata": metadata, **body}, namespace="llmkube-system"
        )
        await trio.sleep(SETTLED)

    async def follow_pods(self) -> None:
        version = -1
        while True:
            await self.kubelet.endpoints.wait_newer(version)
            version = self.kubelet.endpoints.version
            await trio.sleep(0.4)
            labels = (await self.hands.json(Service))["metadata"]["labels"] | {SERVICE_NAME_LABEL: "chat"}
            addresses = [f"10.0.0.{each.name.removeprefix('chat-')}" for each in self.kubelet.endpoints.value]
            manifest = {"metadata": {"labels": labels}, **slice_body(*addresses)}
            await self.hands.cluster.apply_object(EndpointSlice, "chat-x", manifest)

    async def addresses(self) -> list[tuple[str, int]]:
        """The ready addresses of the Service, with their ports, as a proxy has them."""
        slices = (await self.hands.client.list(EndpointSlice, namespace="ml")).items
        return sorted(
            (one.addresses[0], each.ports[0].port or 0)
            for each in slices
            if each.metadata.labels[SERVICE_NAME_LABEL] == "chat"
            for one in each.endpoints
            if one.conditions.ready is not False
        )

    async def watch(self) -> None:
        while True:
            self.empty += not await self.addresses()
            await trio.sleep(0.05)


def slice_body(*addresses: str, ready: bool = True, port: int = 8080) -> dict[str, Any]:
    endpoints = [{"addresses": [one], "conditions": {"ready": ready}} for one in addresses]
    return {"addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": port}]}


async def test_the_front_door_is_the_endpoints_of_a_service_at_zero(autojump_clock, monkeypatch):
    """At every moment the Service has an address that answers: from zero to a pod that is ready, and back."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        kubelet = Kubelet(hands, random.Random(1))
        monkeypatch.setattr(pod_polling, "read_text", kubelet.read_text)
        plain, at_door = PlainService(hands, kubelet), [(each, 8099) for each in DOORS]
        await plain.front_doors(*DOORS)
        await hands.create_model()
        await hands.apply(**ON_REQUEST)
        await hands.end_job()
        assert await plain.addresses() == at_door
        for task in (kubelet.run, plain.follow_pods, plain.watch):
            nursery.start_soon(task)
        door = front_door(hands, kubelet, "one")
        await nursery.start(door.run)
        for number in (1, 2, 3):
            await door.ask(1.0)
            await trio.sleep(SETTLED)
            assert await plain.addresses() == [(f"10.0.0.{number}", 8080)]
            await trio.sleep(LINGER_SECONDS + 3 * IDLE)
            assert await replicas(hands) == 0
            assert await plain.addresses() == at_door
        assert plain.empty == 0
        await plain.front_doors(*DOORS[:1])
        assert await plain.addresses() == at_door[:1]
        await plain.front_doors(*DOORS, ready=False)
        assert await plain.addresses() == []
        await plain.front_doors(*DOORS)
        await hands.apply(activation={"mode": "Always"})
        await trio.sleep(LOAD_SECONDS)
        assert await plain.addresses() == [("10.0.0.4", 8080)]
        nursery.cancel_scope.cancel()


async def test_endpoints_of_a_scale_down_come_before_the_scaling(autojump_clock, monkeypatch):
    """The last pod stays while the slice of the front door cannot be written."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        kubelet = Kubelet(hands, random.Random(1))
        monkeypatch.setattr(pod_polling, "read_text", kubelet.read_text)
        plain = PlainService(hands, kubelet)
        await plain.front_doors(*DOORS)
        await hands.bring_up(**ON_REQUEST | {"activation": {"mode": "Always"}})
        nursery.start_soon(kubelet.run)
        nursery.start_soon(plain.follow_pods)
        await trio.sleep(2 * LOAD_SECONDS)
        hands.cluster.faults.refusals["endpointslices"] = "not now"
        await hands.apply(**ON_REQUEST)
        await trio.sleep(20 * IDLE)
        assert await replicas(hands) == 1
        del hands.cluster.faults.refusals["endpointslices"]
        await trio.sleep(120)
        assert await replicas(hands) == 0
        assert [each for each, _ in await plain.addresses()] == [*DOORS]
        nursery.cancel_scope.cancel()


async def test_a_flood_of_requests_is_a_trickle_of_writes(autojump_clock):
    """Three thousand requests of three services within 30 seconds: a write a second at most, and renewals."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        kubelet = Kubelet(hands, random.Random(1))
        door = front_door(hands, kubelet, "one")
        door.requests.client = hands.cluster.network
        await nursery.start(door.run)
        began = len(hands.cluster.faults.calls)
        for number in range(3_000):
            with door.requests.using(f"ml/chat-{number % 3}", ""):
                await trio.sleep(0.01)
        writes = [
            call for call in hands.cluster.faults.calls[began:] if call.resource == "leases" and call.verbs != {"list"}
        ]
        assert len(writes) <= 30 / INTERVAL_SECONDS
        lease = await hands.client.get(Lease, Key("ml", LEASE_NAME))
        assert '["chat-0","chat-1","chat-2"]' in lease.metadata.annotations[f"{RECORD_PREFIX}one"]
        nursery.cancel_scope.cancel()


async def test_a_record_that_is_gone_with_its_namespace_is_not_removed_again(autojump_clock):
    """The last request has ended: without the Lease, nothing is left to write."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        door = front_door(hands, Kubelet(hands, random.Random(1)), "one")
        door.requests.client = hands.cluster.network
        await nursery.start(door.run)
        with door.requests.using(str(CHAT), ""):
            await trio.sleep(SETTLED)
        await hands.client.delete(Lease, Key("ml", LEASE_NAME))
        hands.cluster.faults.refusals["leases"] = 'namespaces "ml" not found'
        hands.cluster.faults.refused = (404, "NotFound")
        await trio.sleep(2 * LINGER_SECONDS)
        began = len(hands.cluster.faults.calls)
        await trio.sleep(60)
        assert not [call for call in hands.cluster.faults.calls[began:] if call.verbs & {"patch", "create"}]
        nursery.cancel_scope.cancel()


async def test_a_killed_front_door_wants_nothing_for_long(autojump_clock, monkeypatch):
    """Its record expires by the controller's clock, whatever time is in it."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        await hands.bring_up(**ON_REQUEST)
        kubelet = Kubelet(hands, random.Random(1))
        monkeypatch.setattr(pod_polling, "read_text", kubelet.read_text)
        nursery.start_soon(kubelet.run)
        record = {f"{RECORD_PREFIX}dead": '{"services":["chat"]}'}
        metadata = {"labels": {"inference.llmkube.dev/gateway": "true"}, "annotations": record}
        await hands.cluster.apply_object(Lease, LEASE_NAME, {"metadata": metadata, "spec": {}})
        await trio.sleep(DURATION_SECONDS - 1)
        assert await replicas(hands) == 1
        await trio.sleep(3 * IDLE + SETTLED)
        assert await replicas(hands) == 0
        nursery.cancel_scope.cancel()


@attrs.define(eq=False)
class Trouble:
    """Faults while requests arrive."""

    hands: Hands
    kubelet: Kubelet
    rng: random.Random
    nursery: trio.Nursery
    doors: list[FrontDoor] = attrs.field(factory=list)

    async def open_door(self, name: str) -> None:
        door = front_door(self.hands, self.kubelet, name, self.rng.uniform(0.1, 2.0))
        await self.nursery.start(door.run)
        self.doors.append(door)

    async def happen(self) -> None:
        faults = self.hands.cluster.faults
        kind = self.rng.choice(["nothing", "leases", "deployments", "controller", "network", "door"])
        if kind == "controller":
            self.hands.cluster.bury()
            settings = ControllerSettings(workloads=SETTINGS, identity="one")
            self.nursery.start_soon(self.hands.cluster.run_controller, settings)
        elif kind == "network":
            await faults.cut()
            await trio.sleep(self.rng.uniform(0, 20))
            faults.down = False
        elif kind == "door":
            await self.open_door(f"door{len(self.doors)}")
        elif kind != "nothing":
            faults.unheard.add(kind)
            await trio.sleep(self.rng.uniform(0, 20))
            faults.unheard.discard(kind)


@pytest.mark.parametrize("seed", range(max(1, SIM_SEEDS // 6)))
async def test_no_arrival_is_lost_to_a_scale_down(seed, autojump_clock, monkeypatch):
    """Arrivals around the end of the idle time at several front doors, while watches break and controllers restart."""
    rng = random.Random(seed)
    async with open_pods(identity="one") as hands, trio.open_nursery() as nursery:
        await hands.create_model()
        await hands.apply(**rng.choice([AUTOSCALED, ON_REQUEST, ON_REQUEST | {"replicas": 2}]))
        await hands.end_job()
        kubelet = Kubelet(hands, rng)
        monkeypatch.setattr(pod_polling, "read_text", kubelet.read_text)
        nursery.start_soon(kubelet.run)
        trouble = Trouble(hands, kubelet, rng, nursery)
        for name in ("one", "two"):
            await trouble.open_door(name)

        async def ask(delay: float, seconds: float) -> None:
            await trio.sleep(delay)
            with trio.fail_after(seconds + 120):
                await rng.choice(trouble.doors).ask(seconds)

        for _ in range(RACES):
            async with trio.open_nursery() as race:
                race.start_soon(trouble.happen)
                for _ in range(rng.randint(1, 4)):
                    race.start_soon(ask, rng.uniform(0, 2 * IDLE), rng.choice([0.1, 1.0, 15.0]))
            await trio.sleep(LINGER_SECONDS + rng.uniform(0, 3 * IDLE))
        assert kubelet.counts.count(0) > 1, "it was never stopped"
        nursery.cancel_scope.cancel()

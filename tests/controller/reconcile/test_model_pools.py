"""Members of a ModelPool take turns: one leaves when it is idle, and the next starts when its pods are gone."""

from typing import Any

import attrs
import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import Hands, open_pods
from llmkube.controller.reconcile import pod_polling
from llmkube.k8s.builtins import Lease, Service
from llmkube.k8s.crd.sharing import GPUQuota, ModelPool
from llmkube.k8s.leases.wanted_services import GATEWAY_LABEL, LEASE_NAME, RECORD_PREFIX, encode_record
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, Pod

NAMES = ("a", "b")


@attrs.define(eq=False)
class Stage:
    """Two members, the kubelet, engines with requests, and a front door that needs some members."""

    hands: Hands
    busy: set[str] = attrs.field(factory=set)
    wanted: set[str] = attrs.field(factory=set)
    stuck: set[str] = attrs.field(factory=set)  # members whose pods do not end
    hung: set[str] = attrs.field(factory=set)  # members whose engines run, and do not answer
    history: list[frozenset[str]] = attrs.field(factory=list)  # members with pods

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            record = {f"{RECORD_PREFIX}door": encode_record("door", number, self.wanted)}
            body = {"metadata": {"labels": {GATEWAY_LABEL: "true"}, "annotations": record}, "spec": {}}
            await self.hands.cluster.apply_object(Lease, LEASE_NAME, body, manager="door")
            for index, name in enumerate(NAMES, start=1):
                live = await self.hands.client.get(Deployment, Key("ml", name))
                there = await self.hands.exists(Pod, f"{name}-{index}")
                ready = {"type": "Ready", "status": "False" if name in self.hung else "True"}
                status = {"phase": "Running", "podIP": f"10.0.0.{index}", "conditions": [ready]}
                if live.spec.replicas:
                    await self.hands.service_pod(status, name=name, number=index)
                    await trio.sleep(0 if there else 1)
                elif not live.spec.replicas and there and name not in self.stuck:
                    assert name not in self.busy, "a member with requests was stopped"
                    await self.hands.client.delete(Pod, Key("ml", f"{name}-{index}"))
                await self.hands.roll_out(name, ready=int(bool(live.spec.replicas) and name not in self.hung))
            pods = {name for i, name in enumerate(NAMES, 1) if await self.hands.exists(Pod, f"{name}-{i}")}
            if self.history[-1:] != [frozenset(pods)]:
                self.history.append(frozenset(pods))
            await trio.sleep(1)

    async def read_text(self, url: str) -> str:
        await trio.lowlevel.checkpoint()
        name = NAMES[int(url.removeprefix("http://10.0.0.").partition(":")[0]) - 1]
        if name in self.hung:
            return ""
        return f"llamacpp:requests_processing {int(name in self.busy)}\nllamacpp:requests_deferred 0\n"

    async def replicas(self) -> list[int]:
        return [(await self.hands.client.get(Deployment, Key("ml", name))).spec.replicas for name in NAMES]

    async def pool(self) -> ModelPool:
        return await self.hands.client.get(ModelPool, Key("ml", "slot"))

    async def condition(self, kind: str) -> tuple[str, str]:
        [found] = [one for one in (await self.pool()).status.conditions if one.type == kind]
        return found.status, found.reason


async def set_up(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, hung: Any = (), **spec: Any
) -> Stage:
    stage = Stage(hands, hung=set(hung))
    monkeypatch.setattr(pod_polling, "read_text", stage.read_text)
    await hands.create_model()
    members = [{"inferenceServiceRef": {"name": name}} for name in NAMES]
    body = {"members": members, "nodeSelector": {"slot": "one"}, **spec}
    await hands.cluster.apply_object(ModelPool, "slot", {"spec": body}, manager="user")
    for name in NAMES:
        await hands.create_service(name, resources={"gpu": 1}, activation={"idleTimeout": "30s"})
    await trio.sleep(SETTLED)
    await hands.end_job()
    await trio.sleep(SETTLED)
    nursery.start_soon(stage.run)
    await trio.sleep(20)
    return stage


async def test_members_take_turns(autojump_clock, monkeypatch):
    """The default member starts; another one starts once the first is idle and its pods are gone."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        stage = await set_up(hands, monkeypatch, nursery, default="a")
        assert await stage.replicas() == [1, 0]
        assert await hands.where("b") == "Idle/Idle"
        template = (await hands.json(Deployment, "a"))["spec"]["template"]["spec"]
        assert template["nodeSelector"] == {"slot": "one"}
        status = (await stage.pool()).status
        assert (status.phase, status.resident_member, status.pending_member) == ("Ready", "a", "")
        await trio.sleep(90)
        assert await stage.replicas() == [1, 0]  # the default member is not stopped for being idle
        stage.busy, stage.wanted, stage.stuck = {"a"}, {"b"}, {"a"}
        await trio.sleep(20)
        assert await stage.replicas() == [1, 0]
        assert await hands.where("b") == "Pending/WaitingForPool"
        stage.busy = set()
        await trio.sleep(20)
        assert await stage.replicas() == [0, 0]  # its pods still end
        assert (await stage.pool()).status.phase == "Swapping"
        stage.stuck = set()
        await trio.sleep(20)
        assert await stage.replicas() == [0, 1]
        assert await hands.where("b") == "Ready/InferenceReady"
        stage.wanted = {"a"}
        await trio.sleep(60)
        assert await stage.replicas() == [1, 0]
        assert {len(one) for one in stage.history} == {0, 1}
        labels, value = {"modelpool": "slot", "namespace": "ml"}, hands.cluster.registry.get_sample_value
        members = [value("llmkube_modelpool_members", labels | {"state": each}) for each in ("resident", "pending")]
        assert members == [1, 0]
        assert value("llmkube_modelpool_starts_total", labels) == 3
        waited = value("llmkube_modelpool_wait_seconds_total", labels)
        assert waited is not None
        assert 30 < waited < 120
        nursery.cancel_scope.cancel()


async def test_a_member_with_unbroken_requests_gets_no_new_ones_after_the_swap_budget(autojump_clock, monkeypatch):
    """Its Service has no endpoints until its requests have ended; none is cut off, and then the other member starts."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        stage = await set_up(hands, monkeypatch, nursery, default="a", swapBudget="2m")
        stage.busy, stage.wanted = {"a"}, {"a", "b"}
        await trio.sleep(100)
        service = await hands.client.get(Service, Key("ml", "a"))
        assert "inference.llmkube.dev/closed" not in service.spec.selector
        await trio.sleep(60)
        service = await hands.client.get(Service, Key("ml", "a"))
        assert "inference.llmkube.dev/closed" in service.spec.selector
        assert await stage.replicas() == [1, 0]
        assert await stage.condition("SwapDeferred") == ("True", "PodsBusy")
        stage.busy = set()
        await trio.sleep(20)
        assert await stage.replicas() == [0, 1]
        service = await hands.client.get(Service, Key("ml", "a"))
        assert "inference.llmkube.dev/closed" not in service.spec.selector
        assert await hands.where("a") == "Pending/WaitingForPool"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("was_ready", "wanted"), [(False, {"b"}), (True, {"a", "b"})])
async def test_a_member_that_never_answers_leaves(was_ready, wanted, autojump_clock, monkeypatch):
    """It is not ready, and not known to be idle: two minutes after the swap budget of the other one it is stopped."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        hung = set() if was_ready else {"a"}
        stage = await set_up(hands, monkeypatch, nursery, hung=hung, default="a", swapBudget="2m")
        stage.hung, stage.wanted = {"a"}, wanted
        await trio.sleep(120 + 100)
        assert await stage.replicas() == [1, 0]
        await trio.sleep(60)
        assert await stage.replicas() == [0, 1]
        nursery.cancel_scope.cancel()


async def test_unfit_members_are_named(autojump_clock, monkeypatch):
    """A missing member, one of another pool and one in pods and on hosts take no turns; the pool is Degraded."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        stage = await set_up(hands, monkeypatch, nursery)
        await hands.create_model("mac", hardware={"accelerator": "metal"})
        await hands.create_service("metal", modelRef="mac")
        await hands.create_service("both", modelRef="phi", hosts={"modelRef": "mac", "replicas": 1})
        members = [{"inferenceServiceRef": {"name": name}} for name in ("b", "metal", "both", "gone")]
        await hands.cluster.apply_object(ModelPool, "slot2", {"spec": {"members": members}}, manager="user")
        await trio.sleep(SETTLED)
        status = (await hands.client.get(ModelPool, Key("ml", "slot2"))).status
        conditions = {one.type: (one.status, one.reason, one.message) for one in status.conditions}
        assert status.phase == "Degraded"
        assert conditions["MetalSupported"][:2] == ("False", "MetalMembersUnsupported")
        assert conditions["MetalSupported"][2].startswith("both: pods and hosts serve it together")
        assert conditions["MembersValid"][:2] == ("False", "MissingMembers")
        assert "metal" not in conditions["MembersValid"][2]
        assert "gone: there is no such InferenceService" in conditions["MembersValid"][2]
        assert "b: it is a member of ModelPool slot already" in conditions["MembersValid"][2]
        assert await stage.replicas() == [0, 0]  # no default, and no requests
        nursery.cancel_scope.cancel()


async def test_a_member_that_a_quota_denies_gives_its_turn_to_another(autojump_clock, monkeypatch):
    """The other one runs meanwhile; once the quota has room, the first one takes the next turn."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        stage = await set_up(hands, monkeypatch, nursery)
        limit = {"gpuCount": 1, "namespaceRef": "ml", "minPriority": "high"}
        await hands.cluster.apply_object(GPUQuota, "team", {"spec": limit}, manager="admin")
        await hands.create_service("b", resources={"gpu": 1}, activation={"idleTimeout": "30s"}, priority="high")
        stage.wanted = {"a"}
        await trio.sleep(20)
        assert await hands.where("a") == "Failed/QuotaRefused"
        stage.wanted = {"a", "b"}
        await trio.sleep(20)
        assert await stage.replicas() == [0, 1]
        assert await hands.where("a") == "Failed/QuotaRefused"
        await trio.sleep(40)
        assert stage.history[-1] == {"b"}
        assert len(stage.history) == 2
        await hands.cluster.apply_object(GPUQuota, "team", {"spec": limit | {"minPriority": "low"}}, manager="admin")
        await trio.sleep(20)
        assert await hands.where("a") == "Pending/WaitingForPool"
        stage.wanted = {"a"}
        await trio.sleep(60)
        assert await stage.replicas() == [1, 0]
        nursery.cancel_scope.cancel()


async def test_members_that_fit_together_do_not_exceed_a_quota(autojump_clock, monkeypatch):
    """In a pool of two GPUs nothing is returned for another member: under a quota of one it waits for the first."""
    async with open_pods() as hands, trio.open_nursery() as nursery:
        stage = await set_up(hands, monkeypatch, nursery, gpu=2)
        await hands.cluster.apply_object(
            GPUQuota, "team", {"spec": {"gpuCount": 1, "namespaceRef": "ml"}}, manager="admin"
        )
        stage.wanted = {"a"}
        await trio.sleep(20)
        stage.wanted = {"a", "b"}
        await trio.sleep(40)
        assert await stage.replicas() == [1, 0]
        assert (await hands.where("b")).endswith("/QuotaExceeded")
        stage.wanted = {"b"}
        await trio.sleep(120)
        assert await stage.replicas() == [0, 1]
        nursery.cancel_scope.cancel()

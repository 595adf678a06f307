"""Every spec either makes pods or a condition with the reason, and fields without effect are named."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.drawn import SPECS, admitted
from controller.podcluster import Hands, open_pods
from controller.podobjects import HUB_FILE, SHA
from lengths import EXAMPLES, SOAK
from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import InvalidError
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, HorizontalPodAutoscaler, Job, PersistentVolumeClaim, PodDisruptionBudget
from virtual_clock import virtual_clock


async def test_fields_without_effect_are_named(autojump_clock):
    """A field without effect is listed by its path."""
    async with open_pods() as hands:
        await hands.bring_up(hotCacheMaxSize="1Gi")
        [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert honoured.status == "False"
        assert "spec.hotCacheMaxSize" in honoured.message


@pytest.mark.parametrize(("source", "status"), [(HUB_FILE, "True"), ("pvc://weights/m.gguf", "False")])
async def test_a_digest_that_is_not_checked_is_named(autojump_clock, source, status):
    """A fetch checks a Model's digest; a file on a user's claim is not checked, and the service reports it."""
    async with open_pods() as hands:
        await hands.create_model(source=source, sha256=SHA, hardware={"accelerator": "cpu"})
        await hands.apply()
        [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert honoured.status == status
        assert ("Model.spec.sha256" in honoured.message) is (status == "False")


@pytest.mark.parametrize(
    ("model", "service", "field"),
    [
        ({"source": "pvc://weights/phi.gguf"}, {}, "spec.modelCache"),
        ({"source": "org/repo", "format": "safetensors"}, {"runtime": "vllm"}, "spec.modelCache"),
        ({}, {}, ""),
        ({"source": "pvc://weights/phi.gguf"},
         {"speculativeDecoding": {"type": "draft", "draftModelRef": "small"}}, ""),
        ({"prefetchTolerations": [{"key": "gpu", "operator": "Exists"}]}, {}, "Model.spec.prefetchTolerations"),
        ({}, {"slo": {"objective": "99", "latencyThreshold": "2"}}, "spec.slo.latencyThreshold"),
    ],
)  # fmt: skip
async def test_a_field_without_a_target_is_named(model, service, field, autojump_clock):
    """Pods' own volume without a fetch, a fetch's tolerations without a Job, a latency of an availability."""
    async with open_pods() as hands:
        await hands.create_model(**model)
        await hands.create_model("small")
        await hands.apply(modelCache={"claimName": "mine"}, **service)
        [honoured] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "SpecHonoured"]
        assert field in honoured.message
        assert ("spec.modelCache" in honoured.message) is (field == "spec.modelCache")


async def test_a_draft_that_the_engine_does_not_take_is_named(autojump_clock):
    """Only llama.cpp takes a draft from another Model; elsewhere the field is named as one without an effect."""
    draft = {"speculativeDecoding": {"type": "draft-simple", "draftModelRef": "small"}}
    reported = {}
    async with open_pods() as hands:
        await hands.create_model()
        for runtime in ("llamacpp", "generic"):
            await hands.apply(runtime, runtime=runtime, image="x", **draft)
            conditions = (await hands.cluster.service(runtime)).status.conditions
            [reported[runtime]] = [one.message for one in conditions if one.type == "SpecHonoured"]
    assert "draftModelRef" not in reported["llamacpp"]
    assert "spec.speculativeDecoding.draftModelRef" in reported["generic"]


async def test_a_field_that_is_not_allowed_makes_no_object(autojump_clock):
    """S3: no object is created, and the condition Accepted has the field and the value of the chart."""
    async with open_pods() as hands:
        await hands.create_model(hardware={"accelerator": "cpu"})
        await hands.apply(securityContext={"privileged": True})
        await hands.finish_job()
        assert await hands.where() == "Failed/NotAllowed"
        [accepted] = [one for one in (await hands.cluster.service()).status.conditions if one.type == "Accepted"]
        assert (accepted.status, accepted.reason) == ("False", "NotAllowed")
        assert "spec.securityContext.privileged" in accepted.message
        assert "workloads.allow.privileged" in accepted.message
        assert await hands.names(Deployment) == []


async def test_running_pods_are_unchanged_when_an_edit_is_not_allowed(autojump_clock):
    """The earlier spec's pods continue, can be stopped, and are replaced once the edit is reverted."""
    async with open_pods() as hands:
        await hands.bring_up(contextSize=2048)
        before = await hands.json(Deployment)
        for spec in ({"hostPath": {"path": "/"}}, {"nfs": {"server": "s", "path": "/"}}):
            await hands.apply(contextSize=4096, extraVolumes=[{"name": "v", **spec}])
            assert (await hands.json(Deployment))["spec"] == before["spec"]
            assert await hands.where() == "Ready/InferenceReady"
            reported = {one.type: one.reason for one in (await hands.cluster.service()).status.conditions}
            assert (reported["Accepted"], reported["Degraded"]) == ("NotAllowed", "NotAllowed")
        await hands.apply(contextSize=4096)
        assert "4096" in (await hands.json(Deployment))["spec"]["template"]["spec"]["containers"][0]["args"]


async def test_a_fetch_that_tolerates_too_much_is_not_created(autojump_clock):
    """S3: a Model's Job is a pod as well; the Model names the toleration that the operator does not allow."""
    async with open_pods() as hands:
        await hands.create_model(prefetch=True, prefetchTolerations=[{"operator": "Exists"}])
        assert await hands.model_where() == "Failed/NotAllowed"
        assert await hands.names(Job) == []


SETTLED_SECONDS: Final = 25.0
CHILDREN: Final = (Job, Deployment, Service, HorizontalPodAutoscaler, PodDisruptionBudget)
VOLATILE: Final = {
    "uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "observedGeneration", "clusterIP",
    "clusterIPs", "nodePort", "lastTransitionTime", "startTime", "completionTime",
}  # fmt: skip
USEFUL: Final = (
    {"source": "hf://org/repo/m.gguf", "hardware": {"accelerator": "cuda"}},
    {"source": "org/repo", "format": "safetensors", "hardware": {"accelerator": "cuda", "gpu": {"count": 2}}},
    {"source": "pvc://claim/m.gguf"},
)
"""A Model that can be served, in most cases: drawn fields override it."""
CLAIM: Final = {"metadata": {"name": "claim", "namespace": "ml"}, "spec": {}}


@attrs.frozen
class Desired:
    """A Model and a service."""

    model: Mapping[str, Any]
    service: Mapping[str, Any]


@st.composite
def desired_pairs(draw: st.DrawFn) -> Desired:
    base = draw(st.sampled_from(USEFUL))
    model = draw(admitted(SPECS["Model"], max_fields=3))
    service = draw(admitted(SPECS["InferenceService"], max_fields=8))
    if draw(st.integers(0, 3)):
        model = {**model, **base}
    return Desired(model, service)


@st.composite
def edits(draw: st.DrawFn) -> tuple[Desired, Desired]:
    """Draw a pair and its temporary edit; most edits change only one of the two objects."""
    before, after = draw(desired_pairs()), draw(desired_pairs())
    which = draw(st.sampled_from(("both", "model", "service", "service")))
    return before, attrs.evolve(
        before, **{name: getattr(after, name) for name in ("model", "service") if which in (name, "both")}
    )


async def apply_pair(hands: Hands, number: int, wanted: Desired) -> bool:
    """Apply the pair; False when the API server refuses it, which is a valid result, too."""
    model = f"m{number}"
    try:
        await put(hands, Model, model, {"hardware": {}, **wanted.model})
        await put(hands, InferenceService, f"s{number}", {**wanted.service, "modelRef": model})
    except InvalidError:
        return False
    return True


async def put(hands: Hands, kind: type[Any], name: str, spec: Mapping[str, Any]) -> None:
    """Replace the whole spec, as `kubectl replace` does."""
    metadata: dict[str, Any] = {"name": name, "namespace": "ml"}
    if not await hands.exists(kind, name):
        await hands.client.create(decode(kind, {"metadata": metadata, "spec": spec}), field_manager="user")
        return
    replaced = [{"op": "replace", "path": "/spec", "value": dict(spec)}]
    path, patch = kind.RESOURCE.path("ml", name), "application/json-patch+json"
    await hands.client.request_json("PATCH", path, body=replaced, content_type=patch)


async def children(hands: Hands, number: int) -> dict[str, Any]:
    """The controller's objects for a pair, without fields that no spec decides."""
    found = {}
    for kind in CHILDREN:
        for one in (await hands.client.list(kind, namespace="ml")).items:
            if any(owner.name in (f"m{number}", f"s{number}") for owner in one.metadata.owner_references):
                found[f"{kind.RESOURCE.kind}/{one.key.name}"] = lasting(encode(one))
    return found


def lasting(value: Any) -> Any:
    """Drop fields that no spec decides; an empty map that is applied over a full one is stored as null."""
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if name not in VOLATILE}
    if isinstance(value, list):
        return [lasting(one) for one in value]
    return {} if value is None else value


async def explained(hands: Hands, number: int, wanted: Desired) -> None:
    """Pods, or a condition with a reason and a message."""
    status = (await hands.client.get(InferenceService, Key("ml", f"s{number}"))).status
    reported = {one.type: one for one in status.conditions}
    assert status.phase
    assert all(one.reason and one.message for one in reported.values()), reported
    assert reported["Progressing"].reason
    made = await hands.exists(Deployment, f"s{number}")
    assert made or status.phase in {"Pending", "Failed", "Stopped", "Suspended"}, (status, wanted)
    model = (await hands.client.get(Model, Key("ml", f"m{number}"))).status
    assert model.phase, wanted


def errors(hands: Hands) -> float:
    return hands.cluster.reconciles("model", "error") + hands.cluster.reconciles("inferenceservice", "error")


def dumped(objects: Mapping[str, Any], wanted: Desired) -> str:
    """As text, byte for byte; the replica count is the autoscaler's where there is one."""
    if wanted.service.get("autoscaling"):
        objects = {name: {**one, "spec": {**one["spec"], "replicas": 0}, "status": {}} for name, one in objects.items()}
    return json.dumps(objects, indent=1, sort_keys=True)


@settings(max_examples=EXAMPLES // 4, suppress_health_check=list(HealthCheck), derandomize=not SOAK)
@given(st.lists(edits(), min_size=1, max_size=6))
def test_any_spec_is_served_or_explained_and_can_be_taken_back(drawn: Sequence[tuple[Desired, Desired]]):
    """No reconcile fails; each service has its pods or a reason; and A, then B, then A makes the objects of A."""

    async def main() -> None:
        async with open_pods() as hands, trio.open_nursery() as nursery:
            nursery.start_soon(hands.run_kubernetes)
            await hands.client.create(decode(PersistentVolumeClaim, CLAIM), field_manager="user")
            await hands.bind("claim")
            taken = [number for number, (before, _) in enumerate(drawn) if await apply_pair(hands, number, before)]
            await trio.sleep(SETTLED_SECONDS)
            first = {number: await children(hands, number) for number in taken}
            for number in taken:
                await explained(hands, number, drawn[number][0])
            for number in taken:
                await apply_pair(hands, number, drawn[number][1])
            await trio.sleep(SETTLED_SECONDS)
            for number in taken:
                await explained(hands, number, drawn[number][1])
            for number in taken:
                assert await apply_pair(hands, number, drawn[number][0])
            await trio.sleep(SETTLED_SECONDS)
            # An error in A leaves the pods of B unchanged, as any error does.
            for number in (one for one in taken if f"Deployment/s{one}" in first[one]):
                again = await children(hands, number)
                assert dumped(again, drawn[number][0]) == dumped(first[number], drawn[number][0]), drawn[number]
            assert not errors(hands)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=virtual_clock())

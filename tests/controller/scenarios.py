"""User actions on Models and services over time: a scenario is a list of acts, each followed by an idle time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import trio

from controller.podcluster import KUBE, Hands
from llmkube.controller.writes.owned_kinds import INSTALL_POLL_SECONDS
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.request import MERGE_PATCH
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, PersistentVolumeClaim, PodMonitor

Act = Callable[[Hands], Awaitable[None]]

_REPOSITORY: Final = {"source": "org/repo", "format": "safetensors"}
_UNSCHEDULED: Final = {
    "phase": "Pending",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ],
}


def _model(name: str = "phi", **spec: Any) -> Act:
    return lambda hands: hands.create_model(name, **spec)


def _service(name: str = "chat", **spec: Any) -> Act:
    return lambda hands: hands.create_service(name, **spec)


def _repository(name: str = "phi", **spec: Any) -> Act:
    return _model(name, **{**_REPOSITORY, **spec})


def _delete(kind: type[Any], name: str) -> Act:
    return lambda hands: hands.client.delete(kind, Key("ml", name))


def _both(*acts: Act) -> Act:
    async def act(hands: Hands) -> None:
        for one in acts:
            await one(hands)

    return act


def _scale(replicas: int) -> Act:
    async def act(hands: Hands) -> None:
        path = InferenceService.RESOURCE.path("ml", "chat", "scale")
        patch = {"spec": {"replicas": replicas}}
        await hands.client.request_json("PATCH", path, body=patch, content_type=MERGE_PATCH)

    return act


def _create(kind: type[Any], name: str, spec: Mapping[str, Any]) -> Act:
    """Have another user create an object."""

    async def act(hands: Hands) -> None:
        manifest = {"metadata": {"name": name, "namespace": "ml"}, "spec": dict(spec)}
        await hands.client.create(decode(kind, manifest), field_manager="somebody")

    return act


def _starve(*names: str) -> Act:
    """From now on the pods of these Deployments find no node."""

    async def act(hands: Hands) -> None:
        await trio.lowlevel.checkpoint()
        hands.starved.update(names)

    return act


def _pending_pods(*names: str) -> Act:
    async def act(hands: Hands) -> None:
        for name in names:
            await hands.service_pod(_UNSCHEDULED, name=name)

    return act


def _find_room(name: str) -> Act:
    """A node becomes free: the scheduler places the pod, and it answers."""

    async def act(hands: Hands) -> None:
        await hands.service_pod({"phase": "Running", "conditions": []}, name=name)
        hands.starved.discard(name)

    return act


def _running_pod(name: str) -> Act:
    return lambda hands: hands.service_pod({"phase": "Running", "conditions": []}, name=name)


def _wait(seconds: float) -> Act:
    async def act(_: Hands) -> None:
        await trio.sleep(seconds)

    return act


async def _meddle(hands: Hands) -> None:
    """Have a user edit the controller's objects."""
    patch = {"spec": {"replicas": 7, "template": {"spec": {"nodeSelector": {"zone": "x"}}}}}
    await hands.client.patch(Deployment, Key("ml", "chat"), patch, field_manager=KUBE)


SCENARIOS: Final[Mapping[str, Sequence[Act]]] = {
    "labels come and go": (
        _both(_model(), _service(podLabels={"a": "b"}, env=[{"name": "A", "value": "1"}])),
        _service(podLabels={"c": "d"}, podAnnotations={"e": "f"}),
        _service(),
    ),
    "vllm is scaled": (
        _both(
            _repository(),
            _service(
                runtime="vllm",
                resources={"gpu": 2},
                vllmConfig={"hfTokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}},
            ),
        ),
        _scale(3),
        _scale(0),
        _scale(2),
    ),
    "autoscaling is tried": (
        _both(_model(), _service(replicas=2, autoscaling={"maxReplicas": 4}, disruption={"protectAlways": True})),
        _service(replicas=2),
        _service(autoscaling={"maxReplicas": 2}),
    ),
    "a pause": (
        _both(_repository(), _service(runtime="tgi", resources={"gpu": 1}, replicas=2)),
        _service(runtime="tgi", resources={"gpu": 1}, replicas=2, suspend=True),
        _service(runtime="tgi", resources={"gpu": 1}, replicas=2),
    ),
    "another model": (
        _both(_model(), _model("gemma", source="https://x.org/gemma.gguf"), _service()),
        _service(modelRef="gemma"),
        _delete(Model, "phi"),
    ),
    "another source": (
        _both(_model(), _service()),
        _model(source="hf://org/repo/other.gguf"),
        _model(),
    ),
    "everything is deleted": (
        _both(_model(), _service(), _service("embed", mode="embedding")),
        _delete(Model, "phi"),  # the pods that use it stay
        _delete(InferenceService, "chat"),
        _delete(InferenceService, "embed"),
    ),
    "made again under the same name": (
        _both(_model(), _service(replicas=2, autoscaling={"maxReplicas": 3})),
        _both(_delete(InferenceService, "chat"), _service(runtime="llamacpp", contextSize=4096)),
    ),
    "a stranger is in the way": (
        _create(Deployment, "chat", {"replicas": 1}),
        _both(_model(), _service()),
        _delete(Deployment, "chat"),
    ),
    "a stranger edits": (
        _both(_model(), _service(replicas=2)),
        _meddle,
        _delete(Deployment, "chat"),
    ),
    "the queue for GPUs": (
        _starve("first", "second"),
        _both(
            _repository(),
            _service("first", runtime="sglang", resources={"gpu": 1}),
            _service("second", runtime="sglang", resources={"gpu": 1}, priority="critical"),
        ),
        _pending_pods("first", "second"),
        _find_room("second"),
    ),
    "a claim that is bound late": (
        _both(
            _create(PersistentVolumeClaim, "weights", {}),
            _model(source="pvc://weights/a/b.gguf"),
            _service(),
        ),
        lambda hands: hands.bind("weights"),
    ),
    "a pod runs on the user's claim": (
        _both(
            _create(PersistentVolumeClaim, "weights", {}),
            lambda hands: hands.bind("weights"),
            _model(source="pvc://weights/a/b.gguf"),
            _service(),
        ),
        _running_pod("chat"),  # now the header is read next to it
        _model(source="pvc://weights/a/c.gguf"),
    ),
    "the source is edited under running pods": (
        _both(_model(), _service(replicas=2)),
        _running_pod("chat"),
        _model(source="hf://org/repo/other.gguf"),
        _running_pod("chat"),
    ),
    "each pod fetches": (
        _both(_model(), _service(modelCache={"persistence": "Ephemeral"}, resources={"ephemeralStorage": "9Gi"})),
        _service(),
        _service(modelCache={"claimName": "mine"}),
    ),
    "a draft next to the model": (
        _both(
            _model(),
            _model("tiny", source="hf://org/tiny/tiny.gguf"),
            _service(speculativeDecoding={"type": "draft", "draftModelRef": "tiny"}),
        ),
        _service(),
        _delete(Model, "tiny"),
    ),
    "to a host and back": (
        _both(_model(), _service(replicas=2)),
        _model(hardware={"accelerator": "metal"}),
        _model(),
    ),
    "a mistake is fixed": (
        _both(_model(), _service()),
        _service(runtime="vllm", resources={"gpu": 1}),  # it does not read gguf
        _service(runtime="llamacpp", nodeSelector={"zone": "a"}),
    ),
    "every other engine": (
        _both(
            _repository(),
            _model("gguf"),
            _service("speech", runtime="personaplex", image="example.org/p:1", resources={"gpu": 1}),
            _service("ollama", runtime="ollama", modelRef="gguf"),
            _service("own", runtime="generic", modelRef="gguf", image="example.org/x", args=["--port", "8080"]),
        ),
        _service("own", runtime="generic", modelRef="gguf", command=["serve"], image="example.org/x"),
    ),
    "monitors are installed late": (
        _both(_model(), _service(), _repository("repo")),
        _both(lambda hands: hands.install(PodMonitor), _wait(INSTALL_POLL_SECONDS)),
        _service("vllm", runtime="vllm", modelRef="repo", resources={"gpu": 1}),
    ),
}
"""Named by their acts; the controller runs from the start."""

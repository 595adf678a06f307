"""The objects of each runtime with each feature equal the reviewed golden files.

A golden file is a runtime's. Its first document holds every object of the plainest service; each further one holds a
feature: its spec, and every place where an object differs from the plain one. LLMKUBE_GOLDEN=write writes them
again, to be read.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import yaml

from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.reconcile.context import PodContext
from llmkube.controller.reconcile.workload_plans import plan_workload, weights_usage
from llmkube.controller.render.jobs import fetch_job
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.render.manifests import WantedPods, render_manifests
from llmkube.controller.render.model_sources import cache_key, published_name
from llmkube.controller.settings import Allowance, ControllerSettings
from llmkube.controller.status.scale import desired_replicas
from llmkube.controller.status.supply import choose_supply
from llmkube.controller.writes.status_writer import PhaseChanges
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.registry import BUILT_IN
from llmkube.weights.errors import WeightsError
from llmkube.weights.source import parse_source

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "runtimes"
CONDITION: Final = {"type": "Available", "status": "True", "reason": "ModelReady", "message": "it is there",
                    "lastTransitionTime": "2025-06-01T00:00:00Z", "observedGeneration": 1}  # fmt: skip
CUDA: Final = {"hardware": {"accelerator": "cuda"}}
CPU: Final = {"source": "hf://org/repo/model.gguf", "hardware": {"accelerator": "cpu"}}
REPOSITORY: Final = {"source": "org/repo", "format": "safetensors", **CUDA}


@attrs.frozen
class Case:
    """The spec of one document."""

    service: Mapping[str, Any] = {}
    model: Mapping[str, Any] = {}


GPU: Final = Case({"resources": {"gpu": 1}}, REPOSITORY)
PLAIN: Final[Mapping[str, Case]] = {
    "llamacpp": Case({}, CPU),
    "llamacpp-router": Case({}, {**CPU, "source": "pvc://weights/models"}),
    "generic": Case({"image": "example.org/engine:1", "args": ["--port", "8080"], "containerPort": 8080}, CPU),
    "ollama": Case({}, CPU),
    "triton": Case({"resources": {"gpu": 1}}, {**REPOSITORY, "source": "pvc://weights/repository"}),
    "personaplex": Case({"resources": {"gpu": 1}, "image": "example.org/personaplex:1"}, REPOSITORY),
}
FEATURES: Final[Mapping[str, Case]] = {
    "plain": Case(),
    "keys of clients": Case({"apiKeySecretRef": {"name": "chat-keys"}}),
    "one GPU": Case({"resources": {"gpu": 1}}, CUDA),
    "two GPUs": Case({"resources": {"gpu": 2}}, {"hardware": {"accelerator": "cuda", "gpu": {"count": 2}}}),
    "two GPUs, layers split by hand": Case(
        {},
        {"hardware": {"accelerator": "cuda", "gpu": {"count": 2, "sharding": {"layerSplit": ["0-24", "25-39"]}}}},
    ),
    "two GPUs, split by rows": Case(
        {}, {"hardware": {"accelerator": "cuda", "gpu": {"count": 2, "sharding": {"strategy": "tensor"}}}}
    ),
    "an AMD GPU": Case({"resources": {"gpu": 1}}, {"hardware": {"accelerator": "rocm"}}),
    "a partition of a GPU": Case(
        {"resources": {"gpu": 1, "gpuSharing": {"mode": "partitioned", "profile": "1g.24gb"}}}, CUDA
    ),
    "hybrid offload": Case(
        {"resources": {"gpu": 1, "hostMemory": "96Gi"}, "moeCPULayers": 12},
        {"hardware": {"accelerator": "cuda", "gpu": {"layers": 20}}},
    ),
    "amounts of the Model": Case({}, {"resources": {"cpu": "4", "memory": "16Gi"}}),
    "amounts of the service": Case(
        {"resources": {"cpu": "2", "memory": "8Gi"}}, {"resources": {"cpu": "4", "memory": "16Gi"}}
    ),
    "autoscaled": Case({"autoscaling": {"maxReplicas": 4}}),
    "autoscaled by CPU": Case(
        {
            "autoscaling": {
                "maxReplicas": 4,
                "metrics": [{"type": "Resource", "name": "cpu", "targetAverageUtilization": 80}],
            }
        }
    ),
    "three replicas": Case({"replicas": 3}),
    "protected": Case({"disruption": {"protectAlways": True}}),
    "stopped": Case({"replicas": 0}),
    "suspended": Case({"replicas": 2, "suspend": True, "autoscaling": {"maxReplicas": 4}}),
    "from a claim": Case({}, {"source": "pvc://weights/a/b.gguf"}),
    "by HTTP": Case({}, {"source": "https://example.org/b.gguf", "sha256": "ab" * 32}),
    "a file of a repository": Case({}, {"source": "org/repo@v1", "files": ["b.gguf"]}),
    "a gated repository": Case({}, {"source": "org/gated", "sourceSecretRef": {"name": "hub"}}),
    "the engine fetches": Case({"skipModelInit": True}),
    "each pod fetches": Case({"modelCache": {"persistence": "Ephemeral"}, "resources": {"ephemeralStorage": "20Gi"}}),
    "a token": Case(
        {
            name: {"hfTokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}}
            for name in ("vllmConfig", "sglangConfig", "tgiConfig", "personaPlexConfig")
        }
    ),
    "probes": Case({"probeOverrides": {"startup": {"failureThreshold": 9}, "liveness": {"tcpSocket": {"port": 9}}}}),
    "an image": Case({"image": "example.org/mine:1", "imagePullSecrets": [{"name": "pull"}]}),
    "a command": Case({"command": ["/bin/serve"]}),
    "arguments": Case({"args": ["--one", "1"]}),
    "more arguments": Case({"extraArgs": ["--verbose", "--seed=1"]}),
    "variables": Case(
        {
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ]
        }
    ),
    "a port": Case({"containerPort": 9999, "endpoint": {"port": 80, "type": "NodePort", "nodePort": 30080}}),
    "security": Case({"podSecurityContext": {"runAsUser": 1000}, "securityContext": {"privileged": True}}),
    "priority": Case({"priority": "critical"}),
    "a priority class": Case({"priorityClassName": "mine"}),
    "labels": Case({"podLabels": {"team": "ml", "app": "not-this"}, "podAnnotations": {"note": "x"}}),
    "a place": Case(
        {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "runtimeClassName": "nvidia",
            "affinity": {"podAntiAffinity": {}},
        }
    ),
    "volumes": Case(
        {
            "extraVolumes": [{"name": "lora", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "lora", "mountPath": "/lora"}],
        }
    ),
}


def objects_of(runtime: str, feature: str) -> dict[str, Any]:
    """Return every object by its kind, or the reason for none."""
    plain, asked = PLAIN.get(runtime, GPU), FEATURES[feature]
    spec: dict[str, Any] = {"runtime": runtime, **plain.service, **asked.service}
    model_spec = {**plain.model, **asked.model}
    source = model_spec.pop("source")
    model = cluster_model(source, **model_spec)
    fetched = {"phase": "Ready", "conditions": [CONDITION], **_remembered(model)}
    model = cluster_model(source, status=fetched, **model_spec)
    service = pod_service(**spec)
    allowed = {"allow": frozenset(Allowance), "priority_classes": ("mine",)}
    settings = ControllerSettings(workloads=attrs.evolve(SETTINGS, priority_class_prefix="llmkube-", **allowed))
    unused: Any = None
    context = PodContext(unused, settings, unused, unused, PhaseChanges(unused, unused, unused), settings.workloads)
    workload = plan_workload(context, service, model)
    facts = workload.facts
    if facts.plan is None or workload.weights is None:
        return {"refused": facts.refusal or facts.model.message}
    pods = WantedPods(desired_replicas(service, None), workload.weights)
    wanted = render_manifests(service, facts.plan, settings.workloads, pods)
    made = [one for one in attrs.astuple(wanted, recurse=False) if one]
    if choose_supply(model, [weights_usage(context, service, model)], settings.workloads).by == "job":
        made.append(fetch_job(model, settings.workloads))
    for one in made:
        del one["metadata"]["annotations"][DIGEST]  # it repeats the rest
    without = {"notHonoured": list(facts.plan.not_honoured)} if facts.plan.not_honoured else {}
    return {**{one["kind"]: one for one in made}, **without}


def _remembered(model: Model) -> dict[str, str]:
    """Return the part of a status that records the weights, for a Model that has some."""
    try:
        name = published_name(parse_source(model.spec.source)) or "model.gguf"
        key = cache_key(model.spec)
    except WeightsError:
        return {}
    return {"cacheKey": key, "path": f"/models/{key}/{name}"}


def document(runtime: str, feature: str) -> dict[str, Any]:
    objects = objects_of(runtime, feature)
    if feature == "plain":
        plain = PLAIN.get(runtime, GPU)
        return {"feature": feature, "service": dict(plain.service), "model": dict(plain.model), **objects}
    asked = {"feature": feature, "service": dict(FEATURES[feature].service), "model": dict(FEATURES[feature].model)}
    if "refused" in objects:
        return {**asked, **objects}
    return {**asked, "differs": dict(differences(objects_of(runtime, "plain"), objects))}


def differences(plain: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the places where two values differ, with the other value."""
    if isinstance(plain, Mapping) and isinstance(other, Mapping):
        for name in [*plain, *(name for name in other if name not in plain)]:
            where = f"{path}.{name}" if path else name
            if name not in other:
                yield where, "(nothing)"
            elif name not in plain:
                yield where, other[name]
            else:
                yield from differences(plain[name], other[name], where)
    elif _is_list_of_maps(plain) and _is_list_of_maps(other) and len(plain) == len(other):
        for index, (one, its) in enumerate(zip(plain, other, strict=True)):
            yield from differences(one, its, f"{path}[{index}]")
    elif plain != other:
        yield path, other


def _is_list_of_maps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


class _Dumper(yaml.SafeDumper):
    """A dumper without anchors: a document is read on its own."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@pytest.mark.parametrize("runtime", BUILT_IN)
def test_a_runtimes_objects_equal_its_golden_file(runtime: str) -> None:
    """Each feature changes the fields of its document, and nothing else."""
    documents = [document(runtime, feature) for feature in FEATURES]
    rendered = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    file = GOLDEN / f"{runtime}.yaml"
    if os.environ.get("LLMKUBE_GOLDEN") == "write":
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")


def test_every_runtime_has_a_file() -> None:
    """Every runtime that runs in pods has one, and no file is left over."""
    assert set(BUILT_IN) == {file.stem for file in GOLDEN.glob("*.yaml")}


def test_every_feature_does_something_somewhere() -> None:
    """A feature that changes no object of any runtime would test nothing."""
    for feature in [name for name in FEATURES if name != "plain"]:
        assert any(document(runtime, feature).get("differs") for runtime in BUILT_IN), feature

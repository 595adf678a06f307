"""Manifests are what the golden files say, byte for byte; LLMKUBE_GOLDEN=write writes them anew, to be read."""

import os
from pathlib import Path

import attrs
import pytest
import yaml

from controller.podobjects import HUB_FILE, SETTINGS, SHA, cluster_model, gpu_plan, plan, pod_service
from llmkube.controller.reconcile.workload_plans import RENDERED
from llmkube.controller.render.jobs import fetch_job, inspect_job, prune_job
from llmkube.controller.render.labels import DIGEST
from llmkube.controller.render.model_sources import (
    cache_key,
    claim_path,
    extra_files,
    job_name,
    published_name,
    source_of,
)
from llmkube.controller.render.monitoring import pod_monitor
from llmkube.controller.render.scaling import autoscaler, disruption_budget
from llmkube.controller.render.storage import CACHE_CLAIM, Storage, cache_claim, serving_storage
from llmkube.controller.render.workload import deployment, kubernetes_service
from llmkube.controller.status.supply import User, choose_supply, without_effect
from llmkube.k8s.codec import decode
from llmkube.k8s.workloads import PersistentVolumeClaim
from llmkube.runtimes.container.container_plan import ScalingMetric
from llmkube.runtimes.plan import Placeholder
from llmkube.runtimes.registry import container_plan_for
from llmkube.weights.errors import SourceError

GOLDEN = Path(__file__).parents[1] / "golden"
PATH = "/models/0123/model.gguf"
TOLERATION = {"key": "gpu", "operator": "Exists"}
TUNED = attrs.evolve(
    SETTINGS,
    image_pull_secrets=("pull",),
    cache_storage_class="fast",
    cache_access_mode="ReadWriteMany",
    hub_endpoint="https://hub.local",
    private_sources=("10.0.0.0/8",),
    ca_config_map="ca",
    priority_class_prefix="llmkube-",
)


def in_pods(service, the_plan, *, model=None, settings=SETTINGS, replicas=1, path=PATH):
    storage = serving_storage(service, model or cluster_model(), path, settings)
    return deployment(service, the_plan, settings, replicas=replicas, storage=storage)


def with_draft(source, draft):
    """Return a Deployment whose engine is handed two files, each from where its Model has it."""
    weights, beside = (
        serving_storage(pod_service(), cluster_model(one), PATH if one == HUB_FILE else mounted(one), SETTINGS)
        for one in (source, draft)
    )
    engine = plan(args=("--model", Placeholder.MODEL, "--model-draft", Placeholder.DRAFT))
    return deployment(pod_service(), engine, SETTINGS, replicas=1, storage=weights, draft=beside)


def mounted(source):
    return f"/model-source/{claim_path(source_of(cluster_model(source).spec)).path}"


def shared_claim():
    tag = {"name": CACHE_CLAIM, "namespace": "ml", "uid": "c-1"}
    return decode(PersistentVolumeClaim, {"metadata": tag})


def planned(service, model):
    return container_plan_for(service, model, rendered=RENDERED)


EVERYTHING = {
    "podLabels": {"team": "ml", "app": "not-this"},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "runtimeClassName": "nvidia",
    "imagePullSecrets": [{"name": "mine"}],
    "podSecurityContext": {"runAsUser": 1000},
    "securityContext": {"privileged": True},
    "extraVolumes": [{"name": "lora", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "lora", "mountPath": "/lora"}],
    "revisionHistoryLimit": 2,
    "priority": "critical",
    "endpoint": {"port": 9000, "type": "NodePort", "nodePort": 30080},
}

MANIFESTS = {
    "claim": lambda: cache_claim("ml", SETTINGS),
    "claim-tuned": lambda: cache_claim("ml", TUNED),
    "job": lambda: fetch_job(cluster_model(), SETTINGS),
    "job-inspect": lambda: inspect_job(cluster_model("pvc://c/a/b.gguf"), "/model-source/a/b.gguf", ["chat"], SETTINGS),
    "job-prune": lambda: prune_job(shared_claim(), ["0123456789abcdef", "fedcba9876543210"], SETTINGS),
    "job-everything": lambda: fetch_job(
        cluster_model(
            "org/repo@v1",
            files=["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"],
            mmproj="mmproj.gguf",
            sha256=SHA.upper(),
            sourceSecretRef={"name": "hub"},
            prefetch=True,
            prefetchTolerations=[TOLERATION],
        ),
        TUNED,
    ),
    "deployment": lambda: in_pods(pod_service(), plan()),
    "deployment-gpu": lambda: in_pods(pod_service(replicas=2), gpu_plan(2), replicas=2),
    "deployment-everything": lambda: in_pods(
        pod_service(**EVERYTHING), gpu_plan(shared_memory=True), settings=TUNED, replicas=1
    ),
    "deployment-claim": lambda: in_pods(
        pod_service(), plan(), model=cluster_model("pvc://w/a/b.gguf"), path="/model-source/a/b.gguf"
    ),
    "deployment-node": lambda: in_pods(
        pod_service(), plan(), model=cluster_model("/data/m.gguf"), path="/model-source/m.gguf"
    ),
    "deployment-ephemeral": lambda: in_pods(
        pod_service(modelCache={"persistence": "Ephemeral"}, resources={"ephemeralStorage": "20Gi"}), plan()
    ),
    "deployment-own-claim": lambda: in_pods(pod_service(modelCache={"claimName": "mine"}), plan(), settings=TUNED),
    "deployment-draft-elsewhere": lambda: with_draft("pvc://w/a/b.gguf", "pvc://d/c/small.gguf"),
    "deployment-by-the-engine": lambda: deployment(pod_service(), plan(args=("serve",)), SETTINGS, replicas=1),
    "service": lambda: kubernetes_service(pod_service(), plan(port=8000)),
    "service-node-port": lambda: kubernetes_service(pod_service(**EVERYTHING), plan()),
    "service-odd-name": lambda: kubernetes_service(pod_service("9.chat"), plan()),
    "autoscaler": lambda: autoscaler(pod_service(autoscaling={"maxReplicas": 4}), plan()),
    "autoscaler-metrics": lambda: autoscaler(
        pod_service(
            autoscaling={
                "minReplicas": 2,
                "maxReplicas": 4,
                "metrics": [
                    {"type": "Pods", "name": "queue", "targetAverageValue": "5"},
                    {"type": "Resource", "name": "cpu", "targetAverageUtilization": 80},
                    {"type": "Resource", "name": "memory", "targetAverageValue": "8Gi"},
                ],
            }
        ),
        plan(),
    ),
    "budget": lambda: disruption_budget(pod_service(replicas=2), plan(), starting=False),
    "budget-protected": lambda: disruption_budget(
        pod_service(disruption={"protectAlways": True}), plan(), starting=False
    ),
    "monitor": lambda: pod_monitor(pod_service(), plan(metrics_port_name="http")),
    "monitor-renamed": lambda: pod_monitor(
        pod_service(),
        plan(metrics_port_name="metrics", hpa_metric=ScalingMetric("tgi:queue_size", exported_as="tgi_queue_size")),
    ),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_each_manifest_is_as_written_down(name):
    """Rendered twice it is the same, and the same as in the golden file."""
    rendered = yaml.safe_dump(MANIFESTS[name](), sort_keys=False, width=120)
    assert yaml.safe_dump(MANIFESTS[name](), sort_keys=False, width=120) == rendered
    file = GOLDEN / f"{name}.yaml"
    if os.environ.get("LLMKUBE_GOLDEN") == "write":
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "draft", "volumes", "paths"),
    [
        ("pvc://w/a.gguf", "pvc://w/b.gguf", 1, ["/model-source/a.gguf", "/model-source/b.gguf"]),
        ("pvc://w/a.gguf", "pvc://d/a.gguf", 2, ["/model-source/a.gguf", "/draft-source/a.gguf"]),
        (HUB_FILE, "pvc://d/a.gguf", 2, [PATH, "/model-source/a.gguf"]),
    ],
)
def test_a_draft_is_where_its_own_volume_is(source, draft, volumes, paths):
    """No two volumes have one name or one place, and the engine is told where each file is."""
    pod = with_draft(source, draft)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert len({one["name"] for one in pod["volumes"]}) == len(pod["volumes"]) == volumes
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    assert len(mounts) == len(container["volumeMounts"]) == volumes
    assert [container["args"][1], container["args"][3]] == paths


def test_every_golden_file_has_its_manifest():
    """No file is left over from a manifest that nobody renders any more."""
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(MANIFESTS)


@pytest.mark.parametrize(
    ("runtime", "model", "spec"),
    [
        ("llamacpp", {"hardware": {"accelerator": "cpu"}}, {}),
        ("llamacpp", {}, {"resources": {"gpu": 2}, "contextSize": 8192, "flashAttention": True}),
        ("vllm", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        ("tgi", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        ("sglang", {"source": "org/repo", "format": "safetensors"}, {"resources": {"gpu": 1}}),
        (
            "generic",
            {"hardware": {"accelerator": "cpu"}},
            {"image": "example.org/x", "args": ["--port", "8080"], "containerPort": 8080},
        ),
    ],
)
def test_every_runtime_makes_a_pod(runtime, model, spec):
    """A container with an image, a port named http, three probes, and a Service that points at that name."""
    the_model, service = cluster_model(**model), pod_service(runtime=runtime, **spec)
    the_plan = planned(service, the_model)
    storage = serving_storage(service, the_model, PATH, SETTINGS) if the_plan.uses_weights else Storage()
    template = deployment(service, the_plan, SETTINGS, replicas=1, storage=storage)["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert container["image"]
    assert container["ports"][0] == {"name": "http", "containerPort": the_plan.port, "protocol": "TCP"}
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert kubernetes_service(service, the_plan)["spec"]["ports"][0]["targetPort"] == "http"
    supply = choose_supply(the_model, [User(brings_weights=not the_plan.needs_model_init)], SETTINGS)
    assert not without_effect(the_model, supply, the_plan.not_honoured)


def test_a_source_reaches_its_container_as_it_is():
    """Kubernetes replaces `$(NAME)` and `$$` in arguments and variables: what stands for itself is escaped."""
    odd = cluster_model("s3://bucket/$(HOME)/$$a.gguf", sha256=SHA)
    [container] = fetch_job(odd, SETTINGS)["spec"]["template"]["spec"]["containers"]
    assert container["env"][0] == {"name": "LLMKUBE_SOURCE", "value": "s3://bucket/$$(HOME)/$$$$a.gguf"}
    files = cluster_model("org/repo", files=["$(HOME).gguf", "$b.gguf"])
    [container] = fetch_job(files, SETTINGS)["spec"]["template"]["spec"]["containers"]
    named = {container["args"][at + 1] for at, word in enumerate(container["args"]) if word in ("--file", "--beside")}
    assert named == {"$$(HOME).gguf", "$$b.gguf"}


def test_the_key_changes_with_what_decides_the_bytes():
    """Source, files, projector and digest make another folder; hardware and resources do not."""
    first = cluster_model("org/repo", files=["a.gguf"])
    others = [
        cluster_model("org/other", files=["a.gguf"]),
        cluster_model("org/repo", files=["b.gguf"]),
        cluster_model("org/repo", files=["a.gguf"], mmproj="m.gguf"),
        cluster_model("org/repo", files=["a.gguf"], sha256=SHA),
    ]
    keys = [cache_key(one.spec) for one in (first, *others)]
    assert len(set(keys)) == len(keys)
    same = cluster_model("org/repo", files=["a.gguf"], resources={"cpu": "4"}, quantization="Q4_0")
    assert cache_key(same.spec) == keys[0]


def test_a_job_has_a_name_that_fits_a_label():
    """However long the Model's name is, and two long ones that begin alike do not share a Job."""
    names = {job_name(cluster_model(name=name)) for name in ("a", "x" * 200 + "1", "x" * 200 + "2", "a.b-" * 12 + "c")}
    assert len(names) == 4
    assert all(len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    ("source", "files", "name"),
    [
        (HUB_FILE, (), "model.gguf"),
        ("https://x.org/a-00002-of-00003.gguf", (), "model-00001-of-00003.gguf"),
        ("org/repo", ("a-00001-of-00002.gguf",), "model-00001-of-00002.gguf"),
        ("org/repo", (), ""),
        ("builtin://demo", (), "model.gguf"),
        ("pvc://a/b", (), ""),
    ],
)
def test_the_name_of_the_first_file_is_known_beforehand(source, files, name):
    """Except for a whole repository, of which only fetching can tell how many parts its model has."""
    assert published_name(source_of(cluster_model(source, files=list(files)).spec)) == name


def test_parts_of_a_split_model_are_not_fetched_twice():
    """What belongs to the first file comes with it; only the rest is fetched beside it."""
    spec = cluster_model(
        "org/repo", files=["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "draft.gguf"], mmproj="mm.gguf"
    ).spec
    assert extra_files(spec) == ("draft.gguf", "mm.gguf")


@pytest.mark.parametrize("source", ["pvc://claim", "pvc://claim/../etc", "pvc://claim//x", "pvc:///x"])
def test_a_claims_path_stays_on_the_claim(source):
    """A path that is missing, or leads out of the claim, is refused."""
    with pytest.raises(SourceError):
        claim_path(source_of(cluster_model(source).spec))


def test_the_digest_is_of_all_that_the_manifest_says():
    """Another label makes another digest; the digest itself is no part of it."""
    one, other = kubernetes_service(pod_service(), plan()), kubernetes_service(pod_service(modelRef="other"), plan())
    assert one["metadata"]["annotations"][DIGEST] != other["metadata"]["annotations"][DIGEST]


@pytest.mark.parametrize(
    ("spec", "starting", "most"),
    [
        ({}, True, None),
        ({"replicas": 2}, True, 1),
        ({"disruption": {}}, True, 0),
        ({"disruption": {}}, False, None),
        ({"disruption": {}, "replicas": 3}, False, 1),
        ({"disruption": {"protectAlways": True}}, False, 0),
        ({"disruption": {"protectStartup": False}}, True, None),
        ({"autoscaling": {"maxReplicas": 2}}, False, 1),
    ],
)
def test_disruption_is_bounded_where_that_helps(spec, starting, most):
    """Protected pods may not go at all, of several one at a time; for a single one there is no budget."""
    budget = disruption_budget(pod_service(**spec), plan(), starting=starting)
    assert (budget["spec"]["maxUnavailable"] if budget else None) == most


@pytest.mark.parametrize("spec", [{}, {"autoscaling": {"maxReplicas": 2}, "suspend": True},
                                  {"autoscaling": {"maxReplicas": 2}, "replicas": 0}])  # fmt: skip
def test_nothing_is_scaled_that_shall_not_run(spec):
    """No autoscaler without the wish for one, and none that would start what is stopped."""
    assert autoscaler(pod_service(**spec), plan()) is None

"""A Job of the controller does its task, and has no other rights."""

from controller.podobjects import SETTINGS, cluster_model, pod_service
from llmkube.controller.render.jobs import fetch_job, inspect_job
from llmkube.controller.render.model_sources import cache_key
from llmkube.controller.render.storage import serving_storage
from llmkube.controller.settings import WorkloadSettings
from llmkube.controller.status.supply import Supply, choose_supply, weights_path

JOB = Supply("job")


def words(container):
    return container["args"]


def test_a_followed_source_has_a_folder_for_each_version():
    """The Job of a followed source compares, and stores versions below a key of its own; others do neither."""
    still, moving = cluster_model(), cluster_model(refreshPolicy="OnChange")
    [plain] = fetch_job(still, SETTINGS)["spec"]["template"]["spec"]["containers"]
    [fresh] = fetch_job(moving, SETTINGS)["spec"]["template"]["spec"]["containers"]
    assert {"--fresh", "--versions"} & set(words(plain)) == set()
    assert {"--fresh", "--versions"} <= set(words(fresh))
    assert cache_key(still.spec) != cache_key(moving.spec)
    own = pod_service(modelCache={"persistence": "Ephemeral"})
    path = weights_path(moving, Supply("pods"))
    [init] = serving_storage(own, moving, path, SETTINGS).init_containers
    assert "--fresh" in words(init)
    assert "--versions" not in words(init)


def test_an_object_in_a_bucket_is_fetched_with_its_secret():
    """The container gets a bucket's keys from the Secret, if it exists; another Secret, another folder."""
    model = cluster_model("s3://models/chat.gguf", sourceSecretRef={"name": "minio"})
    [container] = fetch_job(model, SETTINGS)["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
    assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"} <= set(given)
    assert given["AWS_REGION"] == {"name": "minio", "key": "AWS_REGION", "optional": True}
    assert cache_key(model.spec) != cache_key(cluster_model("s3://models/chat.gguf").spec)
    assert weights_path(model, Supply("pods")).endswith("/model.gguf")
    assert choose_supply(model, [], SETTINGS) == JOB


ON_NODES = WorkloadSettings(image="x", host_paths=("/data",))
SOURCE = "pvc://weights/a/b.gguf"


def test_the_job_runs_next_to_the_serving_pods_and_may_only_read():
    """It has the claim read-only, no token, no group that would change the claim's files, and no right to be root."""
    spec = inspect_job(cluster_model(SOURCE), "/model-source/a/b.gguf", ["chat"], SETTINGS)["spec"]
    pod = spec["template"]["spec"]
    [container], [volume] = pod["containers"], pod["volumes"]
    assert container["args"] == ["fetch", "--inspect", "/model-source/a/b.gguf"]
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    assert container["volumeMounts"] == [{"name": "model-source", "mountPath": "/model-source", "readOnly": True}]
    assert "env" not in container
    assert container["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False
    assert "fsGroup" not in pod["securityContext"]
    [beside] = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert beside["labelSelector"]["matchExpressions"][0]["values"] == ["chat"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (0, 3600)


def test_a_folder_of_the_nodes_is_mounted_read_only():
    """A path on the nodes is read from its folder, in the same way as by the engine."""
    pod = inspect_job(cluster_model("/data/x/m.gguf"), "/model-source/m.gguf", ["chat"], ON_NODES)["spec"]["template"]
    assert pod["spec"]["volumes"][0]["hostPath"] == {"path": "/data/x", "type": "Directory"}
    assert pod["spec"]["containers"][0]["volumeMounts"][0]["readOnly"]

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container import ContainerPlan
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for
from llmkube.runtimes.sources import hub_repository
from llmkube.weights.gguf import GGUFFacts
from llmkube.weights.source import HubRepository


def model(status=None, **spec):
    body = {"metadata": {"name": "m"}, "spec": {"source": "https://example.com/m.gguf", **spec}}
    return decode(Model, {**body, "status": status or {}})


def service(**spec):
    return decode(InferenceService, {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", **spec}})


def plan(of=None, facts=None, rendered=(), **spec) -> ContainerPlan:
    return container_plan_for(service(**spec), of or model(), facts, rendered=rendered)


def argument(made, flag):
    return made.args[made.args.index(flag) + 1] if flag in made.args else None


def test_llama_server_is_llamacpp_in_a_pod():
    """Both names make the same container."""
    assert plan(runtime="llama-server") == plan(runtime="llamacpp")


@pytest.mark.parametrize(
    ("of", "runtime", "field", "said"),
    [
        (model(hardware={"accelerator": "metal"}), "llamacpp", "Model.spec.hardware.accelerator", "served by hosts"),
        (model(), "omlx", "spec.runtime", "does not run in pods"),
        (model(), "nonsense", "spec.runtime", "use one of generic, llamacpp"),
        (model(format="mlx"), "llamacpp", "Model.spec.format", "llamacpp reads gguf, not mlx"),
        (model(format="mlx"), "generic", "Model.spec.format", "spec.runtime to omlx"),
        (model(source="nonsense"), "llamacpp", "Model.spec.source", "use builtin"),
        (model(source="s3://b/k"), "vllm", "Model.spec.format", "not gguf"),
    ],
)
def test_what_no_pod_can_run_is_refused_with_the_field(of, runtime, field, said):
    """The message names the field to change, and what to change it to."""
    with pytest.raises(PlanError, match=said) as refused:
        plan(of, runtime=runtime)
    assert refused.value.field == field


def test_the_default_format_is_no_obstacle_to_an_engine_that_fetches_for_itself():
    """The schema writes gguf where nobody says anything: a repository for vLLM need not say otherwise."""
    assert argument(plan(model(source="org/repo"), runtime="vllm"), "--model") == "org/repo"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("org/repo", HubRepository("org/repo")),
        ("org/repo@v1", HubRepository("org/repo", "v1")),
        ("hf://org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo/tree/main", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo/tree/v1", HubRepository("org/repo", "v1")),
        ("https://HuggingFace.co/Org/Repo?library=x", HubRepository("Org/Repo")),
        ("https://huggingface.co/org/repo/resolve/main/m.gguf", None),
        ("https://huggingface.co/datasets/data", None),
        ("https://example.com/org/repo", None),
        ("hf://org/repo/m.gguf", None),
        ("pvc://claim/m", None),
    ],
)
def test_a_repository_is_known_by_its_page_as_well(source, found):
    """What a browser shows as a model's page is that model, and a file or a data set is not."""
    assert hub_repository(source) == found


@pytest.mark.parametrize(
    ("of", "spec", "fetched", "mounted"),
    [
        (model(), {}, True, True),
        (model(), {"skipModelInit": True}, False, False),
        (model(source="pvc://claim/m.gguf"), {"skipModelInit": True}, False, True),
        (model(source="org/repo"), {"runtime": "vllm"}, False, False),
        (model(source="org/repo", files=["a", "b"], format="safetensors"), {"runtime": "vllm"}, True, True),
        (model(source="https://e.com/m.safetensors", format="safetensors"), {"runtime": "vllm"}, True, True),
        (model(source="org/repo"), {"runtime": "tgi"}, False, False),
        (model(source="org/repo"), {"runtime": "personaplex", "image": "x"}, False, False),
        (model(), {"runtime": "generic", "image": "x"}, True, True),
        (model(), {"runtime": "generic", "image": "x", "skipModelInit": True}, False, False),
        (model(), {"runtime": "llamacpp-router"}, False, False),
        (model(source="s3://b/k", format="custom"), {"runtime": "triton"}, False, False),
    ],
)
def test_who_fetches_the_weights(of, spec, fetched, mounted):
    """Somebody fetches for an engine exactly if it does not do it itself, and mounts what it is handed."""
    made = plan(of, **spec)
    assert (made.needs_model_init, made.uses_weights) == (fetched, mounted)


GGUF = {"gguf": {"architecture": "llama", "contextLength": 2048}}


@pytest.mark.parametrize(
    ("of", "facts", "spec", "context"),
    [
        (model(), None, {}, "4096"),
        (model(GGUF), None, {}, "2048"),
        (model(GGUF), GGUFFacts(architecture="llama", file_version=3, tensor_count=1, size_bytes=1, context_length=512),
         {}, "512"),
        (model(GGUF), None, {"contextSize": 8192}, "8192"),
    ],
)  # fmt: skip
def test_an_unset_context_is_what_the_model_knows_up_to_4096(of, facts, spec, context):
    """The same rule as on a host, from facts or from the Model's status."""
    assert argument(plan(of, facts, **spec), "--ctx-size") == context


@pytest.mark.parametrize(
    ("architecture", "pooling"), [("llama", "last"), ("qwen3", "last"), ("nomic-bert", None), ("gemma-embedding", None)]
)
def test_an_encoder_pools_as_it_was_trained(architecture, pooling):
    """A decoder that embeds is told how to pool; an encoder's own header says it."""
    of = model({"gguf": {"architecture": architecture}})
    assert argument(plan(of, mode="embedding"), "--pooling") == pooling


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "/v1/chat/completions"),
        ({"mode": "embedding"}, "/v1/embeddings"),
        ({"mode": "rerank"}, "/v1/rerank"),
        ({"mode": "embedding", "endpoint": {"path": "/embed"}}, "/embed"),
        ({"runtime": "personaplex", "image": "x"}, "/api/chat"),
        ({"runtime": "personaplex", "image": "x", "endpoint": {"path": "/v1/chat/completions"}}, "/api/chat"),
        ({"runtime": "triton"}, "/v2"),
    ],
)
def test_the_endpoint_is_one_that_the_engine_has(spec, path):
    """The schema's default is replaced where it would promise a page that is not there; a user's own path is not."""
    of = model(source="org/repo", format="custom") if "runtime" in spec else model()
    assert plan(of, **spec).endpoint_path == path


def test_what_the_caller_renders_is_not_reported():
    """A path covers what is below it, and nothing whose name only begins like it."""
    spec = {"autoscaling": {"maxReplicas": 2}, "nodeSelector": {"a": "b"}, "priority": "high", "priorityClassName": "p"}
    assert plan(rendered={"spec.autoscaling", "spec.priority"}, **spec).not_honoured == (
        "spec.priorityClassName",
        "spec.nodeSelector",
    )


def test_a_gpu_that_nobody_requests_is_reported():
    """A Model for CUDA without a count would be served by a CPU in silence."""
    made = plan(model(hardware={"accelerator": "cuda"}))
    assert "cuda" not in made.image
    assert made.not_honoured == ("Model.spec.hardware.accelerator",)


def test_the_users_variables_come_last_and_win():
    """Each name is there once; what refers to an earlier one finds it."""
    made = plan(
        model(source="org/repo"),
        runtime="vllm",
        env=[{"name": "HF_HOME", "value": "/mine"}, {"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
    )
    assert [(variable.name, variable.value) for variable in made.env][-2:] == [("HF_HOME", "/mine"), ("A", "2")]
    assert len({variable.name for variable in made.env}) == len(made.env)


@pytest.mark.parametrize(
    ("runtime", "name", "exported"),
    [
        ("llamacpp", "llamacpp:requests_processing", ""),
        ("vllm", "vllm:num_requests_running", ""),
        ("tgi", "tgi:queue_size", "tgi_queue_size"),
    ],
)
def test_each_runtime_scales_on_its_own_metric(runtime, name, exported):
    """The names are those of the announcement; where the engine calls it otherwise, the plan says so."""
    metric = plan(model(source="org/repo" if runtime != "llamacpp" else "/m.gguf"), runtime=runtime).hpa_metric
    assert (metric.name, metric.exported_as) == (name, exported)


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ("https://user:secret@example.com/m.gguf", "spec.skipModelInit"),
        ("https://example.com/m.gguf?X-Amz-Signature=secret", "spec.skipModelInit"),
        ("hf://org/repo/m.gguf@v2", "spec.skipModelInit"),
        ("s3://bucket/m.gguf", "Model.spec.source"),
        ("builtin://demo", "Model.spec.source"),
    ],
)
def test_llama_cpp_fetches_nothing_that_it_cannot_or_that_would_show_a_secret(source, field):
    """A refusal names the way out, and never the secret."""
    with pytest.raises(PlanError) as refused:
        plan(model(source=source), skipModelInit=True)
    assert refused.value.field == field
    assert "secret@" not in str(refused.value)
    assert "Signature" not in str(refused.value)


def test_a_draft_that_is_not_among_the_files_is_refused():
    """A file that nobody fetches is told before the engine misses it."""
    wish = {"type": "draft", "draftModel": "d.gguf"}
    with pytest.raises(PlanError, match=r'"d\.gguf" is not among the Model') as refused:
        plan(speculativeDecoding=wish)
    assert refused.value.field == "spec.speculativeDecoding.draftModel"

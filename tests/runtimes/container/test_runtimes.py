import itertools
import os
import subprocess

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.container.container_plan import ContainerPlan, MountPaths
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import container_plan_for


def model(status=None, **spec):
    body = {"metadata": {"name": "m"}, "spec": {"source": "https://example.com/m.gguf", **spec}}
    return decode(Model, {**body, "status": status or {}})


def service(**spec):
    return decode(InferenceService, {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", **spec}})


def plan(of=None, rendered=(), **spec) -> ContainerPlan:
    return container_plan_for(service(**spec), of or model(), rendered=rendered)


def argument(made, flag):
    return made.args[made.args.index(flag) + 1] if flag in made.args else None


def test_llama_server_is_llamacpp_in_a_pod():
    assert plan(runtime="llama-server") == plan(runtime="llamacpp")


@pytest.mark.parametrize(
    ("of", "runtime", "field", "message"),
    [
        (model(hardware={"accelerator": "metal"}), "llamacpp", "Model.spec.hardware.accelerator", "served by hosts"),
        (model(), "omlx", "spec.runtime", "does not run in pods"),
        (model(), "nonsense", "spec.runtime", "use one of generic, .*llamacpp"),
        (model(format="mlx"), "llamacpp", "Model.spec.format", "llamacpp reads gguf, not mlx"),
        (model(format="mlx"), "generic", "Model.spec.format", "spec.runtime to mlx-lm"),
        (model(source="nonsense"), "llamacpp", "Model.spec.source", "use builtin"),
        (model(source="s3://b/k"), "vllm", "Model.spec.format", "not gguf"),
    ],
)
def test_a_spec_that_no_pod_can_run_is_refused_with_the_field(of, runtime, field, message):
    """The message names the field to change, and a valid value."""
    with pytest.raises(PlanError, match=message) as refused:
        plan(of, runtime=runtime)
    assert refused.value.field == field


def test_the_default_format_does_not_block_an_engine_that_fetches_for_itself():
    """The schema's default is gguf: a repository for vLLM need not set another format."""
    assert argument(plan(model(source="org/repo"), runtime="vllm"), "--model") == "org/repo"


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
def test_the_fetcher_of_the_weights(of, spec, fetched, mounted):
    """The weights are fetched for an engine exactly if it does not fetch itself, and are then mounted."""
    made = plan(of, **spec)
    assert (made.needs_model_init, made.uses_weights) == (fetched, mounted)


GGUF = {"gguf": {"architecture": "llama", "contextLength": 2048}}


@pytest.mark.parametrize(
    ("of", "spec", "context"),
    [
        (model(), {}, "4096"),
        (model(GGUF), {}, "2048"),
        (model(), {"contextSize": 8192}, "8192"),
        (model(GGUF), {"contextSize": 8192}, "2048"),
        (model(GGUF), {"contextSize": 8192, "parallelSlots": 2}, "4096"),
        (model(GGUF), {"contextSize": 8192, "ropeScaling": {"type": "yarn", "factor": "4"}}, "8192"),
    ],
)
def test_an_unset_context_is_the_trained_one_up_to_4096(of, spec, context):
    """The same rule as on a host, from the Model's status; a field without effect is reported."""
    planned = plan(of, **spec)
    assert argument(planned, "--ctx-size") == context
    ignored = [each for each in planned.not_honoured if each.startswith("spec.contextSize")]
    assert bool(ignored) == (str(spec.get("contextSize", context)) != context)


@pytest.mark.parametrize(
    ("architecture", "pooling"), [("llama", "last"), ("qwen3", "last"), ("nomic-bert", None), ("gemma-embedding", None)]
)
def test_an_encoder_pools_as_it_was_trained(architecture, pooling):
    """A decoder that embeds gets a pooling type; an encoder's own header has it."""
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
    """The schema's default is replaced if the engine has no such path; a user's own path is not."""
    of = model(source="org/repo", format="custom") if "runtime" in spec else model()
    assert plan(of, **spec).endpoint_path == path


def test_fields_that_the_caller_renders_are_not_reported():
    """A path covers the paths below it, and none that only shares its prefix."""
    spec = {"autoscaling": {"maxReplicas": 2}, "nodeSelector": {"a": "b"}, "priority": "high", "priorityClassName": "p"}
    assert plan(rendered={"spec.autoscaling", "spec.priority"}, **spec).not_honoured == (
        "spec.priorityClassName",
        "spec.nodeSelector",
    )


@pytest.mark.parametrize(
    ("runtime", "flag", "address"),
    [
        ("vllm", "--host", "::"),
        ("tgi", "--hostname", "::"),
        ("llamacpp", "--host", "::"),
        ("sglang", "--host", "0.0.0.0"),
    ],
)
def test_an_engine_listens_on_the_pod_address(runtime, flag, address):
    """On both families, except if the engine's event loop would then leave IPv4 out; the user's value has priority."""
    of = model() if runtime == "llamacpp" else model(source="org/repo")
    assert argument(plan(of, runtime=runtime), flag) == address
    assert argument(plan(of, runtime=runtime, bindAddress="10.0.0.7"), flag) == "10.0.0.7"


def test_ollama_listens_on_all_families():
    """Without an address in it the variable means all families to its server, and this machine to its client."""
    hosts = [
        {one.name: one.value for one in plan(runtime="ollama", **spec).env}["OLLAMA_HOST"]
        for spec in ({}, {"containerPort": 80}, {"bindAddress": "::1"}, {"bindAddress": "10.0.0.7"})
    ]
    assert hosts == [":11434", ":80", "[::1]:11434", "10.0.0.7:11434"]


@pytest.mark.parametrize(
    ("spec", "flag", "value"),
    [
        ({"runtime": "sglang", "sglangConfig": {"toolCallParser": "qwen3"}}, "--tool-call-parser", "qwen25"),
        ({"runtime": "sglang", "sglangConfig": {"toolCallParser": "llama3"}}, "--tool-call-parser", "llama3"),
        ({"runtime": "vllm", "vllmConfig": {"quantization": "nvfp4"}}, "--quantization", "modelopt_fp4"),
        ({"runtime": "vllm", "vllmConfig": {"quantization": "awq"}}, "--quantization", "awq"),
        ({"runtime": "vllm", "vllmConfig": {"attentionBackend": "flashinfer"}}, "--attention-backend", "FLASHINFER"),
    ],
)
def test_a_value_is_spelled_as_in_its_engine(spec, flag, value):
    """Values that the schema and the engine name differently are converted to the engine's."""
    assert argument(plan(model(source="org/repo"), **spec), flag) == value


SPECULATION = {"enabled": True, "algorithm": "Medusa", "numDraftTokens": 4}


@pytest.mark.parametrize(
    ("runtime", "config", "field"),
    [
        ("sglang", {"toolCallParser": "functionary"}, "toolCallParser"),
        ("sglang", {"speculative": SPECULATION}, "speculative.algorithm"),
        ("vllm", {"quantization": "squeezellm"}, "quantization"),
        ("vllm", {"attentionBackend": "xformers"}, "attentionBackend"),
        ("vllm", {"attentionBackend": "TORCH_SDPA"}, "attentionBackend"),
    ],
)
def test_a_value_that_our_image_does_not_know_is_refused(runtime, config, field):
    """The engine would exit at startup; an image of the service may support it."""
    spec = {"runtime": runtime, f"{runtime}Config": config}
    with pytest.raises(PlanError, match=f"the image of {runtime} does not support") as refused:
        plan(model(source="org/repo"), **spec)
    assert refused.value.field == f"spec.{runtime}Config.{field}"
    assert plan(model(source="org/repo"), **spec, image="example.org/older").image == "example.org/older"


GATEWAY = {"enabled": True, "gatewayRef": {"name": "edge"}}


@pytest.mark.parametrize(
    ("gateway", "names"),
    [
        (None, ("chat",)),
        ({**GATEWAY, "enabled": False}, ("chat",)),
        (GATEWAY, ("chat", "m")),
        ({**GATEWAY, "modelName": "org/big:8b"}, ("chat", "org/big:8b")),
        ({**GATEWAY, "modelName": "chat"}, ("chat",)),
    ],
)
def test_an_engine_is_given_all_names_that_clients_use(gateway, names):
    """The service's own and a gateway's, and vLLM its repository's; Ollama has started once it has the last one."""
    spec = {"endpoint": {"gateway": gateway}} if gateway else {}
    made = plan(model(source="org/repo"), runtime="vllm", **spec)
    after = made.args[made.args.index("--served-model-name") + 1 :]
    assert tuple(itertools.takewhile(lambda word: not word.startswith("-"), after)) == (*names, "org/repo")
    ollama = plan(runtime="ollama", **spec)
    assert (ollama.post_start[3], *ollama.post_start[5:]) == names
    assert ollama.probes.startup.command == ("ollama", "show", names[-1])


@pytest.mark.parametrize(
    ("name", "gateway", "field"),
    [
        ("x" * 80, None, ""),
        ("x" * 81, None, "metadata.name"),
        ("chat", "hf.co/org/repo:Q4_K_M", ""),
        ("chat", "a.b/c", "spec.endpoint.gateway.modelName"),
        ("chat", "a b", "spec.endpoint.gateway.modelName"),
        ("chat", "$(HOME)", "spec.endpoint.gateway.modelName"),
        ("chat", "x:" + "y" * 81, "spec.endpoint.gateway.modelName"),
    ],
)
def test_a_name_that_ollama_does_not_take_is_refused(name, gateway, field):
    """A part of more than 80 characters, or an invalid one, is refused with the field to change."""
    spec = {"endpoint": {"gateway": {**GATEWAY, "modelName": gateway}}} if gateway else {}
    body = {"metadata": {"name": name}, "spec": {"modelRef": "m", "runtime": "ollama", **spec}}
    if not field:
        assert container_plan_for(decode(InferenceService, body), model()).post_start[3] == name
        return
    with pytest.raises(PlanError, match="not a model name of Ollama") as refused:
        container_plan_for(decode(InferenceService, body), model())
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("of", "spec", "words"),
    [
        (model(source="https://e.com/$(A)/m.gguf"), {"skipModelInit": True}, {"https://e.com/$$(A)/m.gguf"}),
        (model(source="hf://org/repo/$$a.gguf"), {"skipModelInit": True}, {"$$$$a.gguf"}),
        (model(source="s3://b/$(A)", format="custom"), {"runtime": "triton"}, {"s3://b/$$(A)"}),
        (model(source="org/repo"), {"runtime": "vllm", "endpoint": {"gateway": {**GATEWAY, "modelName": "$(A)"}}},
         {"$$(A)"}),
        (model(), {"reasoningBudget": 9, "reasoningBudgetMessage": "That is $$5, $(USER)."},
         {"That is $$$$5, $$(USER)."}),
        (model(), {"tensorOverrides": [r"ffn_(up|down)$$=CPU"]}, {r"ffn_(up|down)$$$$=CPU"}),
        (model(source="org/repo"), {"runtime": "vllm", "vllmConfig": {"kvCacheCustomDtype": "$(A)"}}, {"$$(A)"}),
        (model(), {"extraArgs": ["--seed", "$(SEED)"]}, {"$(SEED)"}),
        (model(), {"bindAddress": "$(POD_IP)"}, {"$(POD_IP)"}),
    ],
)  # fmt: skip
def test_kubernetes_replaces_only_a_users_own_references(of, spec, words):
    """A `$` in a text is escaped; in a user's own arguments, and the listen address, Kubernetes replaces `$(NAME)`."""
    assert words <= set(plan(of, **spec).args)


@pytest.mark.parametrize(
    ("of", "spec", "calls"),
    [
        (model(), {}, ["list", "create chat -f HOME/chat.Modelfile"]),
        (model(), {"endpoint": {"gateway": GATEWAY}}, ["list", "create chat -f HOME/chat.Modelfile", "cp chat m"]),
        (model(source="org/repo"), {"skipModelInit": True, "endpoint": {"gateway": GATEWAY}},
         ["list", "pull hf.co/org/repo", "cp hf.co/org/repo chat", "cp chat m"]),
    ],
)  # fmt: skip
def test_the_hook_gives_ollama_its_model_by_every_name(tmp_path, of, spec, calls):
    """It waits until the server answers, creates the model, and copies it to the other names too."""
    (tmp_path / "ollama").write_text('#!/bin/sh\necho "$*" >>"$HOME/calls"\n')
    (tmp_path / "ollama").chmod(0o755)
    hook = plan(of, runtime="ollama", **spec).render_hook(MountPaths(model="/models/$(A) b.gguf"))
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(hook, env=environment, check=True, timeout=60)
    calls_made = (tmp_path / "calls").read_text().replace(str(tmp_path), "HOME")
    assert calls_made.splitlines() == calls
    if "create" in calls_made:
        assert (tmp_path / "chat.Modelfile").read_text() == "FROM /models/$(A) b.gguf\n"


def test_a_gpu_that_is_not_requested_is_reported():
    """A Model for CUDA without a count would silently be served by a CPU."""
    made = plan(model(hardware={"accelerator": "cuda"}))
    assert "cuda" not in made.image
    assert made.not_honoured == ("Model.spec.hardware.accelerator",)


def test_the_users_variables_come_last_and_win():
    """Each name is set once; a value that refers to an earlier one finds it."""
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
    """The names are those of the announcement; if the engine uses another one, the plan has that."""
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
    """A refusal names the fix, and never the secret."""
    with pytest.raises(PlanError) as refused:
        plan(model(source=source), skipModelInit=True)
    assert refused.value.field == field
    assert "secret@" not in str(refused.value)
    assert "Signature" not in str(refused.value)


KEYS = {"name": "chat-keys"}
ASKING = ("llamacpp", "llamacpp-router", "vllm", "tgi", "sglang", "ollama")


def mounted(runtime):
    return model(
        source="pvc://claim/m", format="gguf" if runtime in {"llamacpp", "llamacpp-router", "ollama"} else "safetensors"
    )


@pytest.mark.parametrize("runtime", ASKING)
def test_an_engine_whose_clients_have_keys_listens_behind_the_key_proxy(runtime):
    """Its own port is another one than that of clients, on the loopback address; the field is honoured."""
    made = plan(mounted(runtime), runtime=runtime, apiKeySecretRef=KEYS, containerPort=9000)
    check = made.key_check
    assert (check.secret, check.key, made.port) == ("chat-keys", "api-key", 9000)
    assert check.engine_port != 9000
    assert not any("apiKeySecretRef" in path for path in made.not_honoured)
    taken = plan(runtime="llamacpp", apiKeySecretRef=KEYS, containerPort=check.engine_port)
    assert taken.key_check.engine_port != check.engine_port
    assert plan(mounted(runtime), runtime=runtime).key_check is None


@pytest.mark.parametrize("runtime", ["generic", "triton", "personaplex"])
def test_an_engine_that_can_be_reached_otherwise_takes_no_keys(runtime):
    """Its arguments, gRPC or WebSocket bypass the key proxy: the refusal names the alternative."""
    with pytest.raises(PlanError, match=r"NetworkPolicy.*use llamacpp") as refused:
        plan(model(source="pvc://claim/m", format="custom"), runtime=runtime, image="x", apiKeySecretRef=KEYS)
    assert refused.value.field == "spec.apiKeySecretRef"


@pytest.mark.parametrize(
    ("runtime", "spec", "field"),
    [
        *((runtime, {"bindAddress": "0.0.0.0"}, "spec.bindAddress") for runtime in ASKING),
        ("llamacpp", {"extraArgs": ["--host", "0.0.0.0"]}, "spec.extraArgs"),
        ("vllm", {"extraArgs": ["--host=0.0.0.0"]}, "spec.extraArgs"),
        ("sglang", {"extraArgs": ["--host", "0.0.0.0"]}, "spec.extraArgs"),
        ("tgi", {"extraArgs": ["--hostname", "0.0.0.0"]}, "spec.extraArgs"),
        ("ollama", {"env": [{"name": "OLLAMA_HOST", "value": "0.0.0.0"}]}, "spec.env"),
    ],
)
def test_with_keys_no_argument_opens_the_engine(runtime, spec, field):
    """With client keys the listen address is fixed, and a second value is refused."""
    with pytest.raises(PlanError) as refused:
        plan(mounted(runtime), runtime=runtime, apiKeySecretRef=KEYS, **spec)
    assert refused.value.field == field


def test_a_draft_that_is_not_among_the_files_is_refused():
    """A file that is not fetched is refused before the engine misses it."""
    speculative = {"type": "draft", "draftModel": "d.gguf"}
    with pytest.raises(PlanError, match=r'"d\.gguf" is not among the Model') as refused:
        plan(speculativeDecoding=speculative)
    assert refused.value.field == "spec.speculativeDecoding.draftModel"

import contextlib
import itertools
import re
from pathlib import Path

import attrs
import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.devices import Offload
from llmkube.runtimes.llama_fields import draft_of, mode_of
from llmkube.runtimes.plan import EngineInfo, PlanError
from llmkube.runtimes.process.llamacpp import check, parse_buffer, plan, reported_buffers, reported_offload
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.weights.estimate.demand import Component, Location
from llmkube.weights.formats.shape import GGUFFacts
from llmkube.weights.store.blobs import WeightsFile
from model_shapes import decoder

FACTS = GGUFFacts(architecture="llama", file_version=3, tensor_count=1, size_bytes=1, context_length=131072)
WEIGHTS = WeightsFile(Path("/store/blob"), 1, None, "sha256:aa")
MODERN_FLAGS = """
    --model --host --port --alias --ctx-size --parallel --n-gpu-layers --flash-attn --cache-type-k --cache-type-v
    --batch-size --ubatch-size --no-kv-offload --cpu-moe --n-cpu-moe --override-tensor --override-kv --no-warmup
    --rope-scaling --rope-scale --yarn-orig-ctx --jinja --no-jinja --reasoning-budget --reasoning-budget-message
    --spec-type --spec-draft-n-max --spec-draft-p-min --embedding --reranking --pooling --cache-ram --metrics --fit
    --no-ui --verbosity --load-mode --threads
"""
MODERN = EngineInfo("llama-server", "9000", frozenset(MODERN_FLAGS.split()))
OLD = EngineInfo("llama-server", "1", frozenset(["--model", "--metrics", "--no-webui", "--mlock", "--verbosity"]))


def service(spec=None):
    data = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m", **(spec or {})}}
    return decode(InferenceService, data)


def model(accelerator="cpu", **spec):
    hardware = {"accelerator": accelerator, **spec.pop("hardware", {})}
    return decode(Model, {"metadata": {"name": "m", "namespace": "ns"},
                          "spec": {"source": "builtin://demo", "hardware": hardware, **spec}})  # fmt: skip


def planned(spec=None, *, of=None, facts=FACTS, engine=MODERN, alias="chat"):
    return plan(PlanInputs(service(spec), of or model(), WEIGHTS, facts, engine, alias=alias))


def contains(argv, wanted):
    words = wanted.split()
    return any(list(argv[at : at + len(words)]) == words for at in range(len(argv)))


def test_a_plain_service_on_a_cpu():
    """The plainest spec has exactly this command line, and no field is ignored."""
    result = planned()
    argv = result.render(OLD, model="/m.gguf", host="127.0.0.1", port=4711, keys="/keys")
    assert " ".join(argv) == (
        "llama-server --model /m.gguf --host 127.0.0.1 --port 4711 --alias chat --api-key-file /keys --ctx-size 4096 "
        "--parallel 1 --n-gpu-layers 0 --flash-attn auto --metrics --fit off --no-ui --verbosity 4"
    )
    assert (result.runtime, result.alias, result.ready_path, result.env) == ("llamacpp", "chat", "/health", ())
    assert result.not_honoured == ()


def test_a_plain_service_on_metal():
    """A Mac gets all layers and flash attention unless the spec differs."""
    argv = planned(of=model("metal")).argv
    assert contains(argv, "--n-gpu-layers 99 --flash-attn on")


@pytest.mark.parametrize(
    ("of", "extra", "flags", "wanted"),
    [
        (model("metal"), [], {"--load-mode"}, ["--load-mode", "none"]),
        (model("metal"), [], {"--no-mmap", "--mmap"}, ["--no-mmap"]),
        (model("metal"), [], set(), []),
        (model("metal"), ["--load-mode", "mmap"], {"--load-mode"}, ["--load-mode", "mmap"]),
        (model("metal"), ["--mlock"], {"--load-mode"}, ["--load-mode", "mmap+mlock"]),
        (model("metal"), ["--mmap"], {"--no-mmap", "--mmap"}, ["--mmap"]),
        (model(), [], {"--load-mode"}, []),
    ],
)
def test_weights_on_metal_are_memory_of_the_engines_own(of, extra, flags, wanted):
    """On a Mac the file is copied and not mapped, by the flags of the build, unless the service decides it itself."""
    result = planned({"extraArgs": extra}, of=of, engine=EngineInfo("llama-server", "3", frozenset(flags)))
    words = {"--load-mode", "none", "mmap", "mmap+mlock", "--no-mmap", "--mmap"}
    assert [word for word in result.argv if word in words] == wanted
    assert not contains(wanted, "none") or result.demand.mmap is False


def test_an_old_engine_gets_only_its_own_flags():
    """An engine from before a flag is never started with it: verbosity 4 would make such a one log prompts."""
    assert planned(engine=OLD).argv[11:] == (
        "--ctx-size", "4096", "--parallel", "1", "--n-gpu-layers", "0", "--metrics", "--no-webui"
    )  # fmt: skip


VALUE = EngineInfo("llama-server", "2", frozenset({"--flash-attn"}))
SWITCH = EngineInfo("llama-server", "2", frozenset({"--flash-attn"}), frozenset({"--flash-attn"}))
LACKING = EngineInfo("llama-server", "2", frozenset())


@pytest.mark.parametrize(
    ("engine", "accelerator", "wanted", "flag", "ignored"),
    [
        (VALUE, "metal", None, ["--flash-attn", "on"], ()),
        (VALUE, "metal", False, ["--flash-attn", "off"], ()),
        (VALUE, "metal", True, ["--flash-attn", "on"], ()),
        (VALUE, "cpu", None, ["--flash-attn", "auto"], ()),
        (VALUE, "cpu", True, ["--flash-attn", "on"], ()),
        (SWITCH, "metal", None, ["--flash-attn"], ()),
        (SWITCH, "metal", False, [], ()),
        (SWITCH, "metal", True, ["--flash-attn"], ()),
        (SWITCH, "cpu", None, [], ()),
        (SWITCH, "cpu", True, ["--flash-attn"], ()),
        (LACKING, "metal", None, [], ()),
        (LACKING, "metal", True, [], ("spec.flashAttention",)),
        (LACKING, "metal", False, [], ("spec.flashAttention",)),
    ],
)
def test_flash_attention_is_set_by_the_flag_of_the_build(engine, accelerator, wanted, flag, ignored):
    """Unset on metal means on, a given value has priority, off omits a switch; a missing flag is reported."""
    result = planned({} if wanted is None else {"flashAttention": wanted}, of=model(accelerator), engine=engine)
    layers = result.argv.index("--n-gpu-layers") + 2
    assert list(result.argv[layers:]) == flag
    assert result.not_honoured == ignored


@pytest.mark.parametrize(
    ("flags", "rendered"),
    [
        (["--load-mode"], ["--load-mode", "mmap+mlock"]),
        (["--mlock"], ["--mlock"]),
        (["--mlock", "--load-mode"], ["--mlock"]),
    ],
)
def test_mlock_is_set_by_the_flag_of_the_build(flags, rendered):
    """A user who writes --mlock gets it, under any name of the flag."""
    engine = EngineInfo("llama-server", "2", frozenset(flags))
    assert list(planned({"extraArgs": ["--mlock"]}, engine=engine).argv[-len(rendered) :]) == rendered


def test_mlock_on_a_build_without_it_is_a_refusal():
    """A missing flag is an error of the field, and no crash loop."""
    with pytest.raises(PlanError, match="no flag --mlock") as refused:
        planned({"extraArgs": ["--mlock"]}, engine=EngineInfo("llama-server", "2", frozenset({"--threads"})))
    assert refused.value.field == "spec.extraArgs"


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"contextSize": 8192}, "--ctx-size 8192"),
        ({"parallelSlots": 4}, "--parallel 4"),
        ({"flashAttention": True}, "--flash-attn on"),
        ({"flashAttention": False}, "--flash-attn off"),
        ({"cacheTypeK": "q8_0"}, "--cache-type-k q8_0"),
        ({"cacheTypeV": "q4_0"}, "--cache-type-v q4_0"),
        ({"cacheTypeCustomK": "turbo4"}, "--cache-type-k turbo4"),
        ({"cacheTypeCustomV": "turbo4"}, "--cache-type-v turbo4"),
        ({"batchSize": 1024}, "--batch-size 1024"),
        ({"uBatchSize": 256}, "--ubatch-size 256"),
        ({"noKvOffload": True}, "--no-kv-offload"),
        ({"moeCPUOffload": True}, "--cpu-moe"),
        ({"moeCPULayers": 5}, "--n-cpu-moe 5"),
        ({"tensorOverrides": ["a=CPU", "b=CPU"]}, "--override-tensor a=CPU,b=CPU"),
        ({"metadataOverrides": ["k=int:1", "l=str:a,b"]}, "--override-kv k=int:1 --override-kv l=str:a,b"),
        ({"noWarmup": True}, "--no-warmup"),
        ({"ropeScaling": {"type": "yarn", "factor": "2.5", "originalContext": 4096}},
         "--rope-scaling yarn --rope-scale 2.5 --yarn-orig-ctx 4096"),
        ({"jinja": True}, "--jinja"),
        ({"jinja": False}, "--no-jinja"),
        ({"reasoningBudget": 0}, "--reasoning-budget 0"),
        ({"reasoningBudget": 10, "reasoningBudgetMessage": "stop"},
         "--reasoning-budget 10 --reasoning-budget-message stop"),
        ({"speculativeDecoding": {"type": "ngram-mod", "nDraftMax": 8, "pMin": 0.5}},
         "--spec-type ngram-mod --spec-draft-n-max 8 --spec-draft-p-min 0.5"),
        ({"speculativeDecoding": {"type": "mtp"}}, "--spec-type draft-mtp"),
        ({"mode": "rerank"}, "--embedding --reranking --pooling rank"),
        ({"mode": "embedding"}, "--embedding --pooling last --ubatch-size 2048 --batch-size 2048 --cache-ram 0"),
        ({"endpoint": {"path": "/v1/embeddings"}}, "--embedding --pooling last"),
        ({"extraArgs": ["--threads=4", "--mlock"]}, "--load-mode mmap+mlock --threads 4"),
    ],
)  # fmt: skip
def test_a_field_reaches_the_command_line_and_its_digest(spec, wanted):
    """Each llama.cpp field changes the command line, is not reported as ignored, and makes another plan."""
    result = planned(spec)
    assert contains(result.argv, wanted)
    assert result.not_honoured == ()
    assert result.digest != planned().digest


@pytest.mark.parametrize(
    "spec",
    [{"noKvOffload": False}, {"moeCPUOffload": False}, {"noWarmup": False}, {"priority": "high"}, {"replicas": 0},
     {"suspend": True}, {"runtime": "llama-server"}, {"mode": "chat"}, {"speculativeDecoding": {"type": "none"}}],
)  # fmt: skip
def test_a_field_with_the_default_value_is_not_reported(spec):
    """A field with its default value, or one that is decided elsewhere, is not a field without effect."""
    assert planned(spec).not_honoured == ()


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        ({"nodeSelector": {"a": "b"}}, ["spec.nodeSelector"]),
        ({"podLabels": {"a": "b"}, "image": "x"}, ["spec.image", "spec.podLabels"]),
        ({"resources": {"gpu": 1, "memory": "3Gi"}}, ["spec.resources.gpu", "spec.resources.memory"]),
        ({"autoscaling": {"maxReplicas": 3}}, ["spec.autoscaling.maxReplicas"]),
        ({"bindAddress": "0.0.0.0", "containerPort": 1}, ["spec.bindAddress", "spec.containerPort"]),
        ({"endpoint": {"port": 9000, "type": "NodePort"}}, ["spec.endpoint.port", "spec.endpoint.type"]),
        ({"evictionProtection": True}, []),
        ({"turboQuantBits": 3}, ["spec.turboQuantBits"]),
        ({"reasoningBudgetMessage": "stop"}, ["spec.reasoningBudgetMessage"]),
        ({"cacheTypeK": "f16", "cacheTypeCustomK": "x"}, ["spec.cacheTypeK"]),
        ({"ropeScaling": {"type": "longrope", "factor": "2"}}, ["spec.ropeScaling.type", "spec.ropeScaling.factor"]),
        ({"speculativeDecoding": {"type": "draft", "draftModel": "d.gguf"}},
         ["spec.speculativeDecoding.type", "spec.speculativeDecoding.draftModel"]),
    ],
)  # fmt: skip
def test_a_field_without_effect_is_reported(spec, paths):
    """Every given field that changes nothing on a host is listed by its path, once."""
    assert list(planned(spec).not_honoured) == paths


def test_a_field_whose_flag_the_engine_lacks_is_reported():
    """On an engine that has no such flag, the field is listed instead of being dropped in silence."""
    spec = {"jinja": True, "metadataOverrides": ["a=int:1", "b=int:2"], "reasoningBudget": 0, "flashAttention": True}
    assert set(planned(spec, engine=OLD).not_honoured) == {f"spec.{name}" for name in spec}


@pytest.mark.parametrize(
    ("of", "paths"),
    [
        (model(sha256="a" * 64, quantization="Q8_0"), []),
        (model("metal", hardware={"gpu": {"enabled": True, "count": 1, "layers": 20}}), []),
        (model("metal", hardware={"gpu": {"count": 2}}), ["Model.spec.hardware.gpu.count"]),
        (model("cpu", hardware={"gpu": {"layers": 20}}), ["Model.spec.hardware.gpu.layers"]),
        (model(hardware={"memoryFraction": 0.5, "memoryBudget": "8Gi"}), []),
    ],
)
def test_fields_of_the_model_are_reported_too(of, paths):
    """Ignored fields of the Model are listed under its own prefix."""
    assert list(planned(of=of).not_honoured) == paths


@pytest.mark.parametrize(("trained", "context"), [(131072, "4096"), (4096, "4096"), (512, "512"), (None, "4096")])
def test_an_unset_context_is_the_trained_one_up_to_4096(trained, context):
    """Without spec.contextSize no more than 4096 tokens are reserved, and never more than were trained."""
    assert contains(planned(facts=attrs.evolve(FACTS, context_length=trained)).argv, f"--ctx-size {context}")


@pytest.mark.parametrize(
    ("spec", "context", "ignored"),
    [
        ({"contextSize": 512}, 512, ()),
        ({"contextSize": 8192}, 512, ("spec.contextSize beyond 512 (the model was trained for 512 tokens)",)),
        (
            {"contextSize": 8192, "parallelSlots": 2},
            1024,
            ("spec.contextSize beyond 1024 (the model was trained for 512 tokens in each of 2 slots)",),
        ),
        ({"contextSize": 8192, "ropeScaling": {"type": "yarn", "factor": "16"}}, 8192, ()),
        ({"contextSize": 8192, "extraArgs": ["--yarn-orig-ctx", "512"]}, 8192, ()),
    ],
)
def test_a_context_beyond_the_trained_one_is_not_reserved_and_reported(spec, context, ignored):
    """llama.cpp caps each slot at the trained context unless that is stretched: the rest has no effect."""
    result = planned(spec, facts=attrs.evolve(FACTS, context_length=512))
    assert contains(result.argv, f"--ctx-size {context}")
    assert tuple(each for each in result.not_honoured if each.startswith("spec.contextSize")) == ignored


@pytest.mark.parametrize(("layers", "wanted"), [(None, "99"), (0, "0"), (-1, "99"), (1, "1"), (33, "33")])
def test_layers_on_metal(layers, wanted):
    """Unset and -1 mean every layer, 0 means none."""
    hardware = {} if layers is None else {"gpu": {"layers": layers}}
    assert contains(planned(of=model("metal", hardware=hardware)).argv, f"--n-gpu-layers {wanted}")


@pytest.mark.parametrize(("pooling", "forced"), [(None, True), (0, True), (1, False), (3, False)])
def test_an_embedding_model_pools_as_it_was_trained(pooling, forced):
    """The pooling type is set only for a file without one."""
    argv = planned({"mode": "embedding"}, facts=attrs.evolve(FACTS, pooling_type=pooling)).argv
    assert ("--pooling" in argv) is forced


def test_the_users_values_override_our_defaults():
    """A default flag of ours appears once, with the user's value."""
    extra = ["--pooling", "cls", "--cache-ram=100", "--metrics", "--no-webui"]
    engine = attrs.evolve(MODERN, flags=MODERN.flags | {"--no-webui"})
    argv = planned({"mode": "embedding", "uBatchSize": 1024, "extraArgs": extra}, engine=engine).argv
    assert [argv.count(flag) for flag in ("--pooling", "--cache-ram", "--metrics", "--ubatch-size")] == [1, 1, 1, 1]
    assert contains(argv, "--pooling cls --cache-ram 100 --metrics --no-webui")
    assert "--no-ui" not in argv


SHARED = {"contextSize": 512, "parallelSlots": 4, "extraArgs": ["--kv-unified"]}


@pytest.mark.parametrize(
    ("spec", "pooling", "says"),
    [
        (SHARED, None, "spec.contextSize: --kv-unified makes 4 slots share 512 tokens; write at least 1024"),
        ({**SHARED, "contextSize": 1024}, None, ""),
        ({**SHARED, "extraArgs": ["-kvu", "-no-kvu"]}, None, ""),
        ({"mode": "embedding", "uBatchSize": 64}, 1, "spec.uBatchSize: it is 64, and a text to embed or to rank"),
        ({"mode": "rerank", "batchSize": 256}, None, "spec.batchSize: it is 256"),
        ({"mode": "embedding", "extraArgs": ["-ub", "64"]}, 1, "spec.uBatchSize: it is 64"),
        ({"mode": "embedding", "uBatchSize": 256, "contextSize": 256}, 1, ""),
        ({"mode": "embedding", "uBatchSize": 64}, 3, ""),  # with `last` a text may take several batches
        ({"mode": "embedding", "uBatchSize": 64}, None, ""),  # which is what a file without a pooling type gets
        ({"mode": "embedding", "uBatchSize": 64, "extraArgs": ["--pooling", "mean"]}, None, "write at least 512"),
    ],
)
def test_settings_are_judged_together(spec, pooling, says):
    """A setting that the others leave without effect is refused before the engine starts, with the fix."""
    engine = attrs.evolve(MODERN, flags=MODERN.flags | {"-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"})
    with pytest.raises(PlanError) if says else contextlib.nullcontext() as caught:
        planned(spec, facts=attrs.evolve(FACTS, pooling_type=pooling), engine=engine)
    if says:
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "of", "field"),
    [
        ({"extraArgs": ["--port", "1"]}, model(), "spec.extraArgs"),
        ({"extraArgs": ["-c", "1"]}, model(), "spec.extraArgs"),
        ({"env": [{"name": "LD_PRELOAD", "value": "x"}]}, model(), "spec.env"),
        ({"flashAttention": False, "cacheTypeV": "q8_0"}, model(), "spec.cacheTypeV"),
    ],
)
def test_the_impossible_is_refused_from_the_objects_alone(spec, of, field):
    """An impossible spec is refused before anything is downloaded, with its field."""
    with pytest.raises(PlanError) as caught:
        check(service(spec), of)
    assert caught.value.field == field


def test_a_flag_that_the_engine_lacks_is_refused():
    """A flag that the build does not have is refused with its name and the engine's version, a short one as well."""
    for flag in ("--swa-full", "-kvu"):
        with pytest.raises(PlanError, match=f"9000 has no flag {flag}"):
            planned({"extraArgs": [flag]})


BUILD = attrs.evolve(MODERN, flags=MODERN.flags | {"--no-webui", "-ctk", "-ctv", "--embeddings", "--rerank", "-a"})
PEOPLES = [
    (["--alias", "chat"], "--alias chat", "--alias chat --alias"),
    (["--alias", "qwen3.5-4b, ORG/Qwen"], "--alias chat,qwen3.5-4b,ORG/Qwen", "--alias qwen3.5-4b"),
    (["-a", "chat,x"], "--alias chat,x", "-a chat"),
    (["--metrics"], "--metrics", "--metrics --metrics"),
    (["-ctk", "q8_0", "-ctv", "q8_0"], "-ctk q8_0 -ctv q8_0", "--cache-type-k"),
    (["--embeddings"], "--embedding --pooling last --ubatch-size 2048", "--embeddings"),
    (["--embedding", "--pooling", "mean"], "--embedding", "--embedding --embedding"),
    (["--rerank"], "--embedding --reranking --pooling rank", "--rerank"),
    (["--spec-type", "draft-mtp", "--spec-draft-n-max", "4", "--spec-draft-p-min", "0.5"],
     "--spec-type draft-mtp --spec-draft-n-max 4 --spec-draft-p-min 0.5", "--spec-type none"),
    (["--mlock"], "--load-mode mmap+mlock", "--mlock"),
]  # fmt: skip


@pytest.mark.parametrize(("extra", "wanted", "unwanted"), PEOPLES)
def test_flags_with_a_field_are_read_and_not_refused(extra, wanted, unwanted):
    """Flags with a field of their own reach the engine once, in its spelling; further names follow ours."""
    argv = planned({"extraArgs": extra}, engine=BUILD).argv
    assert contains(argv, wanted)
    assert not contains(argv, unwanted)


def test_further_names_on_a_build_that_takes_one_are_reported():
    """Such a build would use the whole list as its name; the name that LLMKube checks stays."""
    result = planned(
        {"extraArgs": ["--alias", "other"]}, engine=attrs.evolve(MODERN, flags=MODERN.flags - {"--load-mode"})
    )
    assert contains(result.argv, "--alias chat")
    assert "other" not in result.argv
    assert result.not_honoured == ("spec.extraArgs --alias",)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"cacheTypeK": "q8_0", "extraArgs": ["-ctk", "q8_0"]}, ""),
        ({"cacheTypeK": "q8_0", "extraArgs": ["-ctk", "f16"]}, "--cache-type-k is controlled by spec.cacheTypeK"),
        ({"noWarmup": True, "extraArgs": ["--no-warmup"]}, ""),
        ({"noWarmup": True, "extraArgs": ["--warmup"]}, "--no-warmup is controlled by spec.noWarmup"),
        ({"mode": "embedding", "extraArgs": ["--embeddings"]}, ""),
        ({"mode": "rerank", "extraArgs": ["--embedding"]}, ""),
        ({"mode": "chat", "extraArgs": ["--embedding"]}, "spec.mode: extraArgs set embedding"),
        ({"batchSize": 64, "extraArgs": ["-b=64"]}, ""),
        ({"batchSize": 64, "extraArgs": ["-b", "65"]}, "--batch-size is controlled by spec.batchSize"),
    ],
)  # fmt: skip
def test_a_flag_has_to_equal_its_field(spec, says):
    """A flag that equals its field is used once; of two that differ neither is ignored."""
    engine = attrs.evolve(BUILD, flags=BUILD.flags | {"-b", "--warmup"})
    if says:
        with pytest.raises(PlanError, match=says):
            planned(spec, engine=engine)
    else:
        result = planned(spec, engine=engine)
        assert result.not_honoured == ()
        words = [word for word in result.argv if word in {"-ctk", "--cache-type-k", "--no-warmup", "-b", "--embedding"}]
        assert len(words) == 1


def test_flags_that_the_owner_allows_reach_the_plan():
    """Flags and variables that a host's owner has allowed are refused on every other host."""
    owner = Allowances(frozenset({"--lora"}), frozenset({"OMP_DISPLAY_ENV"}))
    engine = attrs.evolve(MODERN, flags=MODERN.flags | {"--lora"})
    spec = {"extraArgs": ["--lora", "/adapters/a.gguf"], "env": [{"name": "OMP_DISPLAY_ENV", "value": "true"}]}
    result = plan(PlanInputs(service(spec), model(), WEIGHTS, FACTS, engine, alias="chat", allowances=owner))
    assert contains(result.argv, "--lora /adapters/a.gguf")
    assert result.env == (("OMP_DISPLAY_ENV", "true"),)
    for one in (Allowances(flags=owner.flags), Allowances(variables=owner.variables), Allowances()):
        with pytest.raises(PlanError, match="or allow it on this machine with"):
            check(service(spec), model(), one)


def test_the_environment_is_part_of_the_plan():
    """Variables of the spec reach the plan and make another one."""
    result = planned({"env": [{"name": "OMP_NUM_THREADS", "value": "1"}]})
    assert result.env == (("OMP_NUM_THREADS", "1"),)
    assert result.digest != planned().digest


@pytest.mark.parametrize(
    "other",
    [
        planned,
        lambda: planned(engine=attrs.evolve(MODERN, program="/elsewhere/llama-server", version="9001")),
        lambda: planned({"podLabels": {"a": "b"}}),
        lambda: planned({"replicas": 3, "priority": "high"}),
        lambda: plan(
            PlanInputs(service(), model(), attrs.evolve(WEIGHTS, path=Path("/other")), FACTS, MODERN, alias="chat")
        ),
    ],
)
def test_the_same_spec_is_the_same_plan(other):
    """Fields that do not affect the engine's work require no restart."""
    assert other().digest == planned().digest


def test_other_weights_or_another_name_are_another_plan():
    """New bytes under the same path, and a new model id, require a restart."""
    moved = plan(
        PlanInputs(service(), model(), attrs.evolve(WEIGHTS, identity="sha256:bb"), FACTS, MODERN, alias="chat")
    )
    assert len({planned().digest, moved.digest, planned(alias="ns/chat").digest}) == 3


@pytest.mark.parametrize(
    ("spec", "mode"),
    [({}, "chat"), ({"mode": "rerank"}, "rerank"), ({"endpoint": {"path": "/v1/embeddings/"}}, "embedding"),
     ({"endpoint": {"path": "/v1/rerank"}}, "rerank"), ({"mode": "chat", "endpoint": {"path": "/rerank"}}, "chat")],
)  # fmt: skip
def test_the_mode_follows_the_spec_and_then_the_path(spec, mode):
    """An explicit mode has priority over the endpoint's path."""
    assert mode_of(service(spec).spec) == mode


def test_the_plan_has_its_demand():
    """The demand is read from the whole line, extra arguments included, and is no part of the digest."""
    result = planned({"contextSize": 8192, "parallelSlots": 2, "extraArgs": ["--cache-ram", "256"]}, of=model("metal"))
    assert (result.demand.context, result.demand.slots, result.demand.cache_ram_bytes) == (8192, 2, 256 << 20)
    assert result.demand.device_layers == 99
    assert attrs.evolve(result, demand=None).digest == result.digest


@pytest.mark.parametrize(("extra", "mib"), [([], 512), (["--cache-ram", "100"], 100), (["--cache-ram=0"], 0)])
def test_the_prompt_cache_has_a_limit(extra, mib):
    """For a model of a known shape, the prompt cache keeps one context's worth, unless the user decides."""
    result = planned({"extraArgs": extra}, facts=attrs.evolve(FACTS, shape=decoder()))
    assert contains(result.argv, f"--cache-ram {mib}")
    assert result.argv.count("--cache-ram") == 1
    assert result.demand.cache_ram_bytes == mib << 20


def test_embeddings_have_no_prompt_cache():
    """No embedding ever reads it, for any shape."""
    assert planned({"mode": "embedding"}, facts=attrs.evolve(FACTS, shape=decoder())).demand.cache_ram_bytes == 0


DRAFT = WeightsFile(Path("/store/draft.gguf"), 1, None, "sha256:bb")
GUESSING = attrs.evolve(MODERN, flags=MODERN.flags | {"-md", "--model-draft", "--spec-draft-model"})


@pytest.mark.parametrize(
    "spec",
    [
        {"speculativeDecoding": {"type": "draft-simple", "draftModelRef": "small"}},
        {"extraArgs": ["--spec-draft-model", "small", "--spec-type", "draft-simple"]},
        {"extraArgs": ["-md=/models/small.gguf"]},  # the engine would not use it without a type
        {"speculativeDecoding": {"type": "draft-simple", "draftModelRef": "small"}, "extraArgs": ["-md", "small"]},
    ],
)
def test_a_draft_is_named_by_field_or_flag_and_its_own_file_is_written(spec):
    """The engine gets the draft's file once, named by field or flag; its bytes are part of the plan."""
    result = plan(PlanInputs(service(spec), model(), WEIGHTS, FACTS, GUESSING, alias="chat", draft=DRAFT))
    assert contains(result.argv, "-md /store/draft.gguf")
    assert contains(result.argv, "--spec-type draft-simple")
    assert not {"small", "/models/small.gguf", "--spec-draft-model"} & set(result.argv)
    assert result.not_honoured == ()
    other = attrs.evolve(DRAFT, identity="sha256:cc")
    assert (
        plan(PlanInputs(service(spec), model(), WEIGHTS, FACTS, GUESSING, alias="chat", draft=other)).digest
        != result.digest
    )


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, ""),
        ({"speculativeDecoding": {"type": "ngram-mod"}}, ""),
        ({"speculativeDecoding": {"type": "draft", "draftModelRef": "small"}}, "small"),
        ({"extraArgs": ["--model-draft", "small-1.5b"]}, "small-1.5b"),
        ({"extraArgs": ["-md", "/m/x.gguf"]}, "/m/x.gguf"),
    ],
)
def test_the_draft_model(spec, named):
    """It is a Model's name or a file's path."""
    assert draft_of(service(spec).spec) == named


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"extraArgs": ["-md", "x.gguf/../../etc"]},
            "absolute path of a file below a folder that --allow-local-sources lists",
        ),
        ({"extraArgs": ["-md", "../x"]}, "name a Model in this namespace"),
        ({"extraArgs": ["-md", "ORG/repo"]}, "name a Model in this namespace"),
        ({"speculativeDecoding": {"type": "draft", "draftModelRef": "a"}, "extraArgs": ["-md", "b"]}, "remove one of"),
        ({"speculativeDecoding": {"type": "draft", "draftModelRef": "/etc/a"}}, "name a Model in this namespace"),
    ],
)
def test_a_draft_that_is_neither_is_refused_before_anything_is_fetched(spec, says):
    """No repository, no relative path, and not two of them."""
    with pytest.raises(PlanError, match=says):
        check(service(spec), model())


def test_a_restart_is_another_plan_and_an_honoured_field():
    """`llmkube restart` writes a pod annotation: on a host it changes the digest, and is not reported as ignored."""
    plans = [
        planned({"podAnnotations": {"kubectl.kubernetes.io/restartedAt": time}} if time else {})
        for time in ("", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z")
    ]
    assert len({each.digest for each in plans}) == 3
    assert [each.not_honoured for each in plans] == [()] * 3
    assert planned({"podAnnotations": {"a": "b"}}).not_honoured == ("spec.podAnnotations",)


def test_further_ids_of_the_field_and_of_the_argument_are_one_list():
    """`spec.aliases` come first, the service's own name is not repeated."""
    result = planned({"aliases": ["chat", "org/chat"], "extraArgs": ["--alias", "org/chat,x"]})
    assert contains(result.argv, "--alias chat,org/chat,x")
    assert result.not_honoured == ()


LOG = """
0.00.004.456 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.006.126 I load_tensors:   CPU_Mapped model buffer size =   832.37 MiB
0.00.006.126 I load_tensors:   CPU_REPACK model buffer size =   234.00 MiB
0.00.006.308 I llama_context:        CPU  output buffer size =     0.50 MiB
0.00.006.391 I llama_kv_cache:        CPU KV buffer size =   128.00 MiB
0.00.006.618 I llama_kv_cache: size =  128.00 MiB (  4096 cells,   2 layers,  2/2 seqs), K (f16):   64.00 MiB
0.00.006.391 I llama_kv_cache:        CPU KV buffer size =    40.00 MiB
0.00.006.700 I llama_memory_recurrent:        CPU RS buffer size =     1.25 MiB
0.00.007.504 I sched_reserve:        CPU compute buffer size =   184.03 MiB
"""
MIB = 1 << 20


def test_a_log_adds_up():
    """Buffers of one name and place are one component; lines that only mention a size are none."""
    assert {each.name: each.size_bytes / MIB for each in reported_buffers(LOG.splitlines())} == {
        "weights": pytest.approx(832.37),
        "repacked weights": 234,
        "output buffer": 0.5,
        "KV cache": 168,
        "recurrent state": 1.25,
        "compute buffer": pytest.approx(184.03),
    }


@pytest.mark.parametrize(
    ("words", "name", "place"),
    [
        ("MTL0_Mapped model", "weights", Location.DEVICE),
        ("MTL0 KV", "KV cache", Location.DEVICE),
        ("CUDA0 compute", "compute buffer", Location.DEVICE),
        ("CUDA_Host compute", "compute buffer", Location.HOST),
        ("CPU_AARCH64 model", "weights", Location.HOST),
        ("BLAS compute", "compute buffer", Location.HOST),
        ("CPUX0 compute", "compute buffer", Location.DEVICE),
    ],
)
def test_where_a_buffer_is(words, name, place):
    """Buffers of the processor and pinned memory are the host's, all others a device's."""
    assert parse_buffer(f"x: {words} buffer size = 2.00 MiB") == Component(name, place, 2 * MIB)


@pytest.mark.parametrize(
    "line",
    ["", "buffer size = 3 MiB", "CPU model buffer size = -3 MiB", "CPU model buffer size = 9999999999999999 MiB",
     "user asked: what is a buffer size = 4 MiB", "CPU KV buffer size = 1e9 MiB"],
)  # fmt: skip
def test_other_lines_are_none(line):
    """Lines that only look like a report are ignored."""
    assert parse_buffer(line) is None


SHIFT = {"extraArgs": ["--context-shift"]}


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        ({}, "4096"),
        (SHIFT, "4096"),
        (SHIFT | {"contextSize": 8192}, "8192"),
        (SHIFT | {"contextSize": 8192, "maxAnswerTokens": 300}, "300"),
        ({"maxAnswerTokens": 300}, "300"),
        ({"extraArgs": ["-n", "300"]}, "300"),
        ({"extraArgs": ["--predict=300", "--context-shift"]}, "300"),
        ({"extraArgs": ["--n-predict", "-1", "--context-shift"]}, "4096"),
        ({"extraArgs": ["-n", "-2"]}, "4096"),
        ({"extraArgs": ["-c", "0", "--context-shift"]}, "131072"),
        ({"mode": "embedding"}, None),
    ],
)
def test_an_answer_has_a_limit(spec, tokens):
    """It is that of the spec, or else the context; no argument removes it."""
    words = planned(spec, engine=attrs.evolve(MODERN, flags=MODERN.flags | {"--n-predict", "--context-shift"}))
    assert words.not_honoured == ()
    argv = words.render(MODERN, model="/m.gguf", host="127.0.0.1", port=4711, keys="/keys")
    found = [value for flag, value in itertools.pairwise(argv) if flag in {"-n", "--predict", "--n-predict"}]
    assert found == ([] if tokens is None else [tokens])


def test_an_unknown_context_that_is_shifted_limits_answers_too():
    """Without a shift, the engine stops at the end of the context that it finds."""
    engine = attrs.evolve(MODERN, flags=MODERN.flags | {"--n-predict", "--context-shift"})
    unknown = attrs.evolve(FACTS, context_length=None)
    shifts = planned({"extraArgs": ["-c", "0", "--context-shift"]}, facts=unknown, engine=engine)
    assert contains(shifts.argv, "--n-predict 4096")
    assert "--n-predict" not in planned({"extraArgs": ["-c", "0"]}, facts=unknown, engine=engine).argv


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"extraArgs": ["-n", "0"]}, "--n-predict is '0'; write 1 to 2097152 tokens, or -1 for the context"),
        ({"extraArgs": ["-n", "many"]}, "write a whole number"),
        ({"extraArgs": ["-n", "5"], "maxAnswerTokens": 6}, "--n-predict is 5 and spec.maxAnswerTokens is 6"),
    ],
)
def test_a_limit_of_answers_that_is_none_is_refused(spec, words):
    """The message names field, value and fix."""
    with pytest.raises(PlanError, match=re.escape(words)):
        check(service(spec), model())


def test_an_engine_without_the_flag_does_not_honour_the_field():
    """The field is reported."""
    assert "spec.maxAnswerTokens" in planned({"maxAnswerTokens": 5}, engine=OLD).not_honoured


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("", None),
        (LOG, Offload("CPU", 0)),
        # a build for ROCm without layers on the GPU, as in ROCm's issue 5104
        (
            """print_info: n_layer          = 40
            load_tensors: offloaded 0/41 layers to GPU
            load_tensors:   CPU_Mapped model buffer size = 14965.61 MiB
            llama_context:      ROCm0 compute buffer size =  1094.99 MiB""",
            Offload("CPU", 0, 41),
        ),
        # Ollama's issue 11986
        (
            """load_tensors: offloading output layer to GPU
            load_tensors: offloaded 81/81 layers to GPU
            load_tensors:        CUDA0 model buffer size = 24277.75 MiB
            load_tensors:        CUDA2 model buffer size = 46151.91 MiB
            load_tensors:   CPU_Mapped model buffer size =  1064.62 MiB
            load_tensors: offloaded 1/2 layers to GPU
            load_tensors:        CUDA1 model buffer size =     1.00 MiB""",
            Offload("CUDA0,CUDA2", 81, 81),
        ),
        # llama.cpp's issue 11367
        (
            "load_tensors: offloaded 0/36 layers to GPU\nload_tensors: CPU_Mapped model buffer size = 1 MiB",
            Offload("CPU", 0, 36),
        ),
        (
            """0.00.064.459 I print_info: n_layer               = 28
            0.00.065.000 I print_info: n_layer_all           = 28
            0.00.065.091 I load_tensors: offloaded 20/29 layers to GPU
            0.00.065.091 I load_tensors:  MTL0_Mapped model buffer size =   604.15 MiB
            0.00.065.091 I load_tensors:   CPU_Mapped model buffer size =   157.65 MiB""",
            Offload("MTL0", 20, 29),
        ),
    ],
)
def test_the_log_says_where_the_layers_are(lines, where):
    """Those of the model, not of its draft; a request for layers is none of the device's."""
    assert reported_offload(lines.splitlines()) == where


def test_a_model_for_the_cpu_leaves_the_gpu_alone():
    """Without a device, llama.cpp does not even compute large batches there; the vendor of another is no request."""
    engine = attrs.evolve(MODERN, flags=MODERN.flags | {"--device"})
    inputs = PlanInputs(service(), model(), WEIGHTS, FACTS, engine, alias="chat", has_gpu=True)
    assert contains(plan(inputs).argv, "--device none")
    assert "--device" not in plan(attrs.evolve(inputs, has_gpu=False)).argv
    radeon = model("rocm", hardware={"gpu": {"vendor": "amd", "count": 1}})
    on_gpu = plan(attrs.evolve(inputs, model=radeon))
    assert contains(on_gpu.argv, "--n-gpu-layers 99")
    assert ("--device" in on_gpu.argv, on_gpu.not_honoured) == (False, ())

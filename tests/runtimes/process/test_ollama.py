"""The plan of Ollama on a host: a valid command line of our own program, and every field without effect reported."""

import itertools

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import FORMATS, Model
from llmkube.k8s.crd.pairing import RUNTIMES
from llmkube.programs.daemon_engine.ollama_program import parse
from llmkube.runtimes.plan import EngineInfo, PlanError
from llmkube.runtimes.process import ollama
from llmkube.runtimes.process.exits import ExitCause, classify
from llmkube.runtimes.process.host_runtime import ProgramError
from llmkube.runtimes.process.host_runtimes import refuse_library
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, plan_for
from runtimes.process.test_llamacpp import FACTS, WEIGHTS

ENGINE = EngineInfo("/usr/local/bin/ollama", "0.17.4", frozenset(), front=("front", "of", "ours", "here"))


def objects(model=None, **spec):
    body = {"metadata": {"name": "chat", "namespace": "team"}, "spec": {"modelRef": "m", "runtime": "ollama", **spec}}
    hardware = {"hardware": {"accelerator": "cpu"}}
    model = {"metadata": {"name": "m"}, "spec": {"source": "https://h/m.gguf", **hardware, **(model or {})}}
    return decode(InferenceService, body), decode(Model, model)


def plan(model=None, keys_digest="", *, asks_key=True, **spec):
    return plan_for(
        PlanInputs(
            *objects(model, **spec), WEIGHTS, FACTS, ENGINE, alias="chat", asks_key=asks_key, keys_digest=keys_digest
        )
    )


def options(made):
    """Return the arguments that our program reads from a plan."""
    argv = made.render(ENGINE, model="/m/a.gguf", host="127.0.0.1", port=8001, keys="/k")
    assert argv[: len(ENGINE.front)] == ENGINE.front
    return parse(argv[len(ENGINE.front) :], {})


def test_the_program_accepts_the_planned_arguments():
    """Model, address, keys, context and placement arrive; the module is the one that the plan names."""
    read = options(plan(contextSize=128))
    assert (read.model, read.host, read.port, str(read.keys)) == ("/m/a.gguf", "127.0.0.1", 8001, "/k")
    assert read.parameters == {"num_ctx": 128, "num_gpu": 0}
    assert read.program == ENGINE.program
    assert read.store_name.startswith("llmkube/team_chat:")
    assert not read.embeds


def test_a_model_of_the_library_is_named_and_no_file_is_given():
    """Ollama serves it from its own store; another tag, or another file behind a tag, is another plan."""
    made = plan({"source": "ollama://llama3.2"})
    assert options(made).library_name == "llama3.2:latest"
    assert made.digest != plan({"source": "ollama://llama3.2:1b"}).digest


@pytest.mark.parametrize("runtime", sorted({*RUNTIMES} - {"ollama"}))
def test_another_engine_does_not_get_a_model_of_the_library(runtime):
    """The refusal has field, value and a working fix, before anything is pulled."""
    for weights, accelerator in itertools.product(FORMATS, ["cpu", "metal", "cuda"]):
        of = {"source": "ollama://llama3.2", "format": weights, "hardware": {"accelerator": accelerator}}
        further = "" if weights == "gguf" else " and Model.spec.format to gguf"
        with pytest.raises(PlanError) as refused:
            check(*objects(of, runtime=runtime))
        assert refused.value.field == "Model.spec.source"
        assert f"ollama://llama3.2 is not one; set spec.runtime to ollama{further}, or name the same" in str(
            refused.value
        )
        check(*objects(of | {"format": "gguf"}, runtime="ollama"))


def test_a_model_of_the_library_is_in_gguf():
    """Another format is refused with the one to set, and no engine that reads the other one is proposed."""
    of = {"source": "ollama://llama3.2", "format": "mlx", "hardware": {"accelerator": "metal"}}
    with pytest.raises(PlanError, match=r"ollama://llama3\.2 is in gguf, not mlx; set gguf$") as refused:
        check(*objects(of, runtime="ollama"))
    assert refused.value.field == "Model.spec.format"


def test_no_other_engine_is_proposed_for_a_draft():
    """An Ollama has no draft models, so that it is no fix."""
    _, draft = objects({"source": "ollama://llama3.2"})
    with pytest.raises(PlanError, match=r"is not one; name the same model as GGUF"):
        refuse_library("llamacpp", draft, draft=True)


def test_on_a_gpu_ollama_places_the_layers_unless_the_model_names_a_number():
    """The reservation includes all layers."""
    free, placed = ({"accelerator": "metal"}, {"accelerator": "metal", "gpu": {"layers": 3}})
    made = plan({"hardware": free})
    assert "num_gpu" not in options(made).parameters
    assert made.demand.device_layers >= 99
    made = plan({"hardware": placed})
    assert options(made).parameters["num_gpu"] == 3
    assert made.demand.device_layers == 3


def test_embeddings_are_served_alone():
    """The agent queries such an engine with an embedding, and clients reach nothing else."""
    made = plan(mode="embedding")
    assert made.mode == "embedding"
    assert options(made).embeds


def test_without_keys_none_are_required():
    """As with llama-server, on a host whose owner allows it."""
    assert options(plan(asks_key=False)).keys is None
    assert options(plan(keys_digest="d", asks_key=False)).keys is not None


@pytest.mark.parametrize(
    ("of", "spec", "field"),
    [
        ({"format": "safetensors"}, {}, "Model.spec.format"),
        ({}, {"mode": "rerank"}, "spec.mode"),
        ({}, {"extraArgs": ["--threads", "4"]}, "spec.extraArgs"),
        ({}, {"env": [{"name": "OLLAMA_HOST", "value": "0.0.0.0"}]}, "spec.env"),
    ],
)
def test_unsupported_fields_are_refused_before_a_download(of, spec, field):
    """With its field, and the running engine is not changed."""
    with pytest.raises(PlanError) as refused:
        check(*objects(of, **spec))
    assert field in str(refused.value.field)


def test_an_upgrade_from_before_programs_moved_restarts_no_engine(monkeypatch):
    """The digests are those of commit 87d319c9, whose agents ran the front as llmkube.cli.daemon_engine."""
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    assert plan().argv[:3] == ("/usr/bin/python3", "-m", "llmkube.cli.daemon_engine.ollama.program")
    assert plan(contextSize=128).digest == "3d7cbdf1e53ff16aa21040f87e9baabb2f2401af6ff05470878f94f69db4e0c7"
    embedder = plan({"source": "ollama://llama3.2"}, mode="embedding")
    assert embedder.digest == "59a5b4ed15b8ddf900b10940ca68134b1b2940dd157dacb313cba80a95d43649"


def test_fields_without_effect_are_reported():
    """The number of concurrent requests is the server's own setting, which others share."""
    assert "spec.parallelSlots" in plan(parallelSlots=4).not_honoured
    assert plan(contextSize=128).not_honoured == ()


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("ollama version is 0.17.4\n", "0.17.4"),
        ("Warning: could not connect to a running Ollama instance\nWarning: client version is 0.24.0\n", "0.24.0"),
    ],
)
def test_its_version_is_read(output, version):
    """With a server and without."""
    assert ollama.RUNTIME.program.describe("/o", [output]).version == version


def test_another_program_is_refused():
    """The refusal names it, and the setting of the right one."""
    with pytest.raises(ProgramError, match="--ollama"):
        ollama.RUNTIME.program.describe("/bin/true", [""])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ollama: Ollama answers 500: model requires more system memory (9.0 GiB) than is available", "OutOfMemory"),
        ("ollama: Ollama answers 500: unable to load model: unknown model architecture: 'x'", "BadModel"),
        ("ollama: no Ollama answers at http://127.0.0.1:11434 any more; if it listens elsewhere, …", "Unknown"),
    ],
)
def test_the_cause_of_its_exit_is_read_from_its_last_line(line, cause):
    """The line of our program is in the message."""
    found = classify(1, ['{"level":"info","msg":"x"}', line], rules=ollama.RUNTIME.log.rules)
    assert found.cause is ExitCause(cause)
    assert line[:60] in found.summary


def test_its_load_phase_is_read_from_its_newest_line():
    """A copy of many GiB is reported as one."""
    words = ['{"msg":"hashing the weights"}', '{"msg":"copying the weights into Ollama\'s store"}', "other"]
    assert ollama.phase(words) == "copying the weights into Ollama's store"
    assert ollama.phase(["other"]) == ""

"""The plan of oMLX on a host: a valid command line of our own program, and every field without effect reported."""

from pathlib import Path

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.programs.daemon_engine.omlx_program import parse
from llmkube.runtimes.plan import EngineInfo, PlanError
from llmkube.runtimes.process import omlx
from llmkube.runtimes.process.exits import ExitCause, classify
from llmkube.runtimes.process.host_runtime import ProgramError
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, plan_for
from runtimes.process.test_llamacpp import FACTS, WEIGHTS

ENGINE = EngineInfo("/opt/homebrew/bin/omlx", "0.6.3", frozenset(), front=("front", "of", "ours", "here"))


def objects(model=None, runtime="omlx", **spec):
    body = {"metadata": {"name": "chat", "namespace": "team"}, "spec": {"modelRef": "m", "runtime": runtime, **spec}}
    made = {"source": "hf://o/r", "format": "mlx", "hardware": {"accelerator": "metal"}, **(model or {})}
    return decode(InferenceService, body), decode(Model, {"metadata": {"name": "m"}, "spec": made})


def plan(model=None, *, asks_key=True, mlx_runtime="mlx-lm", **spec):
    inputs = PlanInputs(
        *objects(model, **spec), WEIGHTS, FACTS, ENGINE, alias="chat", asks_key=asks_key, mlx_runtime=mlx_runtime
    )
    return plan_for(inputs)


def options(made):
    """Return the arguments that our program reads from a plan."""
    argv = made.render(ENGINE, model="/m/tiny", host="127.0.0.1", port=8001, keys="/k")
    assert argv[: len(ENGINE.front)] == ENGINE.front
    return parse(argv[len(ENGINE.front) :], {})


def test_the_program_accepts_the_planned_arguments():
    """Model, address, keys and context arrive; the module is the one that the plan names."""
    read = options(plan(contextSize=128))
    assert (read.model, read.host, read.port, read.keys) == (Path("/m/tiny"), "127.0.0.1", 8001, Path("/k"))
    assert (read.context, read.program, read.alias, read.embeds) == (128, ENGINE.program, "chat", False)
    assert options(plan(mode="embedding")).embeds
    assert options(plan(asks_key=False)).keys is None


def test_the_reservation_includes_the_context():
    """Of one request, and of the buffers that the last one has left."""
    made = plan(contextSize=128)
    assert (made.demand.context, made.demand.slots) == (128, omlx.CACHES)
    assert made.demand.device_layers >= 99


def test_mlx_on_metal_is_planned_with_omlx_where_the_host_takes_that():
    """By default; a spec that names it has the same plan."""
    assert plan(runtime="llamacpp", mlx_runtime="omlx") == plan(runtime="omlx")
    assert plan(runtime="llamacpp", mlx_runtime="mlx-lm").runtime == "mlx-lm"
    assert plan(runtime="mlx-lm", mlx_runtime="omlx").runtime == "mlx-lm"


def test_an_upgrade_from_before_programs_moved_restarts_no_engine(monkeypatch):
    """The digests are those of commit 87d319c9, whose agents ran the front as llmkube.cli.daemon_engine."""
    monkeypatch.setattr("sys.executable", "/usr/bin/python3")
    assert plan().argv[:3] == ("/usr/bin/python3", "-m", "llmkube.cli.daemon_engine.omlx.program")
    assert plan(contextSize=128).digest == "b01744adb1cac8ab2923e0c675c59c12e6da82208bdaeffc4af7bee4c51b2d33"
    assert plan(mode="embedding").digest == "a211c0aa9c1383e73dfee09e47f3d6ac9d3c99da2d2714506f13b78ed80339aa"


def test_fields_without_effect_are_reported():
    """Settings of the daemon are its owner's; those of llama.cpp do not exist here."""
    made = plan(hotCacheMaxSize="8GB", turboQuantBits=3, parallelSlots=4, aliases=["gpt"], flashAttention=True)
    assert set(made.not_honoured) == {
        "spec.hotCacheMaxSize",
        "spec.turboQuantBits",
        "spec.parallelSlots",
        "spec.flashAttention",
    }


@pytest.mark.parametrize(
    ("model", "spec", "field", "message"),
    [
        ({"format": "gguf"}, {}, "Model.spec.format", "omlx reads mlx, not gguf"),
        ({"hardware": {"accelerator": "cpu"}}, {}, "Model.spec.hardware.accelerator", "runs on metal, not cpu"),
        ({}, {"mode": "rerank"}, "spec.mode", "does not rerank"),
        ({}, {"extraArgs": ["--x"]}, "spec.extraArgs", "no extra arguments"),
        ({}, {"env": [{"name": "A", "value": "b"}]}, "spec.env", "belongs to its owner"),
        (
            {},
            {"speculativeDecoding": {"type": "mtp"}},
            "spec.speculativeDecoding",
            "no draft model",
        ),
    ],
)
def test_unsupported_fields_are_refused(model, spec, field, message):
    """Before anything is downloaded."""
    with pytest.raises(PlanError, match=message) as refused:
        check(*objects(model, **spec))
    assert refused.value.field == field


def test_a_program_is_identified():
    """By its help and its bare number; another program, or one too old, is refused with the flag."""
    known = omlx.describe("/o", ["usage: omlx [-h] {serve,launch} ...\nomlx: Production-ready LLM server", "0.6.3\n"])
    assert known == EngineInfo("/o", "0.6.3", frozenset())
    for wrong in (["usage: ollama serve", "0.6.3"], ["usage: omlx {serve}", "no version"]):
        with pytest.raises(ProgramError, match="--omlx-bin"):
            omlx.describe("/o", wrong)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("omlx: oMLX answers 507: projected memory 30 GB would exceed the memory ceiling", ExitCause.OUT_OF_MEMORY),
        ("omlx: oMLX answers 503: Model 'x' failed to load: KeyError", ExitCause.BAD_MODEL),
        ("omlx: no oMLX answers at http://127.0.0.1:8000 any more", ExitCause.UNKNOWN),
    ],
)
def test_an_exit_is_reported_with_its_last_line(line, cause):
    """The last line has the cause."""
    found = classify(1, ["x", line], rules=omlx.RUNTIME.log.rules)
    assert found.cause is cause
    assert line[:30] in found.summary


def test_the_phase_of_a_load_is_reported():
    """As the front writes it."""
    assert omlx.RUNTIME.log.phase(["2026 [info] oMLX loads the model pid=3"]) == "oMLX is loading the model"
    assert omlx.RUNTIME.log.phase(["another line"]) == ""

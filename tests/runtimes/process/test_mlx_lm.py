"""The command line of mlx_lm.server, its refusals, and the detection of its program."""

from pathlib import Path

import pytest

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.runtimes.plan import EngineInfo, Placeholder, PlanError
from llmkube.runtimes.process.exits import ExitCause, classify
from llmkube.runtimes.process.host_runtime import ProgramError
from llmkube.runtimes.process.mlx_lm import PROMPT_CACHES, RUNTIME, interpreter_of
from llmkube.runtimes.process.plan_inputs import PlanInputs
from llmkube.runtimes.registry import check, plan_for
from llmkube.weights.estimate.mlx import read_folder
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.shape import FolderFacts
from llmkube.weights.store.blobs import WeightsFile
from mlx_folder import folder

ENGINE = EngineInfo("/opt/python", "0.32.2", frozenset(), wrapper="/site/mlx_entry.py")


def model(accelerator="metal", weights="mlx"):
    spec = {"source": "hf://org/repo", "format": weights, "hardware": {"accelerator": accelerator}}
    return decode(Model, {"metadata": {"name": "m"}, "spec": spec})


def service(**spec):
    return decode(InferenceService, {"metadata": {"name": "chat"}, "spec": {"modelRef": "m", **spec}})


@pytest.fixture
def header(tmp_path):
    return FolderFacts(read_folder(folder(tmp_path)))


def planned(header, *, of=None, asks_key=True, **spec):
    weights = WeightsFile(Path("/weights"), header.size_bytes, None, "sha256-set:1")
    return plan_for(
        PlanInputs(service(**spec), of or model(), weights, header, ENGINE, alias="chat", asks_key=asks_key)
    )


def test_the_command_line(header):
    """The default runtime with mlx weights on metal is mlx-lm: its Python, our file, a key file, one model."""
    found = planned(header, contextSize=8192, parallelSlots=2)
    assert found.runtime == "mlx-lm"
    words = found.render(ENGINE, model="/w", host="127.0.0.1", port=1, keys="/k")
    assert words[:6] == ("/opt/python", "/site/mlx_entry.py", "--llmkube-keys", "/k", "--llmkube-alias", "chat")
    assert words[6:12] == ("--model", "/w", "--host", "127.0.0.1", "--port", "1")
    assert words[words.index("--decode-concurrency") + 1] == "2"
    assert words[words.index("--allowed-origins") + 1] == "http://localhost"
    assert dict(found.env)["HF_HUB_OFFLINE"] == "1"
    assert (found.demand.context, found.demand.slots) == (8192, 2 + PROMPT_CACHES)
    assert found.not_honoured == ()


def test_another_install_of_ours_is_no_other_plan(header):
    """The path of our file is a slot: an upgrade of LLMKube restarts no engine."""
    found = planned(header)
    assert Placeholder.WRAPPER in found.argv
    assert "mlx_entry" not in "".join(map(str, found.argv))


def test_without_keys_it_asks_for_none(header):
    """If the host's owner admits all clients, there is no file of keys."""
    assert Placeholder.KEYS not in planned(header, asks_key=False).argv


def test_a_field_without_effect_is_reported(header):
    """Fields of llama.cpp alone are reported, and none is refused."""
    assert planned(header, batchSize=64, jinja=True).not_honoured == ("spec.batchSize", "spec.jinja")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"mode": "embedding"}, "spec.mode"),
        ({"endpoint": {"path": "/v1/embeddings"}}, "spec.mode"),
        ({"extraArgs": ["--trust-remote-code"]}, "spec.extraArgs"),
        ({"speculativeDecoding": {"type": "draft", "draftModelRef": "d"}}, "spec.speculativeDecoding"),
        ({"aliases": ["other"]}, "spec.aliases"),
        ({"env": [{"name": "PYTHONPATH", "value": "/evil"}]}, "spec.env"),
    ],
)
def test_unsupported_fields_are_refused(spec, field):
    """Before anything is downloaded, with the field and the fix."""
    with pytest.raises(PlanError) as caught:
        check(service(runtime="mlx-lm", **spec), model())
    assert caught.value.field.startswith(field)


def test_the_estimate_includes_the_servers_caches(header):
    """Each further slot, and each KV cache kept for later, takes as much as the whole context of one."""
    one, two = (
        {c.name: c.size_bytes for c in estimate(header.shape, planned(header, parallelSlots=n).demand).components}
        for n in (1, 2)
    )
    assert one["KV cache"] * (2 + PROMPT_CACHES) == two["KV cache"] * (1 + PROMPT_CACHES)
    assert one["weights"] == two["weights"] == 77791232


@pytest.mark.parametrize(
    ("head", "python"),
    [
        ("#!/opt/venv/bin/python\nimport sys\n", "/opt/venv/bin/python"),
        ("#!/opt/homebrew/opt/mlx-lm/libexec/bin/python3.13\n", "/opt/homebrew/opt/mlx-lm/libexec/bin/python3.13"),
        ("#!/bin/sh\n'''exec' \"/Users/a b/v/bin/python3\" \"$0\" \"$@\"\n' '''\n", "/Users/a b/v/bin/python3"),
        ("#!/bin/sh\n'''exec' /long/v/bin/python3.12 \"$0\" \"$@\"\n' '''\n", "/long/v/bin/python3.12"),
    ],
)  # fmt: skip
def test_the_python_of_a_script(head, python):
    """Pip's two forms, Homebrew's and those of pipx and uv name it in the first lines."""
    assert interpreter_of(head) == python


@pytest.mark.parametrize("head", ["", "\x7fELF", "#!/bin/sh\nexec rm -rf /\n", "#!/usr/bin/env node\n", "#!python\n"])
def test_another_program_is_not_run(head):
    """A file that names no Python by its path is refused with the setting."""
    with pytest.raises(ProgramError, match="--mlx-server"):
        interpreter_of(head)


def test_its_build_is_read():
    """The last word is the version, after any warnings; without one there is no engine."""
    assert RUNTIME.program.describe("/py", ["warning: x\n0.32.2\n"]).version == "0.32.2"
    with pytest.raises(ProgramError, match="reinstall it"):
        RUNTIME.program.describe("/py", [""])


@pytest.mark.parametrize(
    ("line", "cause", "step"),
    [
        ("ModuleNotFoundError: No module named 'mlx'", ExitCause.MISSING_LIBRARY, "--mlx-server"),
        ("/x is not the mlx_lm that llmkube knows: it has no APIHandler.do_GET", ExitCause.MISSING_LIBRARY, ""),
        ("ValueError: Model type of_tomorrow not supported.", ExitCause.BAD_MODEL, "spec.source"),
        ("OSError: [Errno 48] Address already in use", ExitCause.PORT_TAKEN, ""),
        ("RuntimeError: [metal::malloc] Attempting to allocate 9 bytes", ExitCause.OUT_OF_MEMORY, "spec.contextSize"),
        ("load_tensors: error loading model", ExitCause.UNKNOWN, ""),  # llama.cpp's lines are not its own
    ],
)  # fmt: skip
def test_the_cause_of_its_exit(line, cause, step):
    """By its own lines, and not by llama.cpp's."""
    found = classify(1, ["2026-11-26 - ERROR - Traceback (most recent call last):", line], rules=RUNTIME.log.rules)
    assert found.cause is cause
    assert step in found.next_step

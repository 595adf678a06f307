"""`llmkube verify`: on this system, against the kernels of simulated Macs, and with recorded devices."""

import json
import platform
import sys
from pathlib import Path

import attrs
import pytest
import trio

from device_trees import listing, plant
from llmkube.cli.commands.verify import checks
from llmkube.cli.commands.verify.command import STEPS, play
from llmkube.runtimes.devices import Devices, parse_listed
from llmkube.supervisor.host.devices import find_devices
from mac.macs import RELEASES

ROOT = Path(__file__).parents[2]
LOG = """load_tensors: offloaded 33/33 layers to GPU
prompt eval time =      70.00 ms /    14 tokens (    5.00 ms per token,   200.00 tokens per second)
       eval time =     500.00 ms /    50 tokens (   10.00 ms per token,   100.00 tokens per second)
"""  # as llama.cpp's server writes it


def test_the_page_explains_each_promise_and_no_other():
    """docs/guides/verify-on-a-mac.md has a row for each line of the report, in its order."""
    page = (ROOT / "docs" / "guides" / "verify-on-a-mac.md").read_text("utf-8")
    rows = [line.split(" | ")[0].removeprefix("| ") for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [step["promise"] for step in STEPS.values()]


@pytest.mark.e2e
async def test_a_report_is_written_and_nothing_else(tmp_path, monkeypatch):
    """A real model is served from a temporary folder; the report has no name of the machine or the home folder."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir(), temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    only = [word for name in ("cpu", "cordon", "doctor", "memory") for word in ("--only", name)]
    argv = [sys.executable, "-m", "llmkube", "verify", "--out", str(tmp_path / "report"), *only]
    done = await trio.run_process(argv, capture_stdout=True, check=False)
    report = (tmp_path / "report" / "llmkube-verify.json").read_text("utf-8")
    verdicts = {row["step"]: row["verdict"] for row in json.loads(report)["steps"]}
    assert verdicts == {"cpu": "pass", "cordon": "pass", "doctor": "pass", "memory": "not applicable"}, report
    assert done.returncode == 0
    markdown = (tmp_path / "report" / "llmkube-verify.md").read_text("utf-8")
    assert "| cpu | pass | a model is served on the CPU, and answers |" in markdown
    assert not {str(home), platform.node()} & set((report + markdown).replace('"', " ").split())
    assert list(temporary.iterdir()) == []
    assert [each for each in home.rglob("*") if each.is_file()] == []


@pytest.mark.parametrize("release", RELEASES)
def test_kernels_of_macs(mac_of, monkeypatch, release):
    """The promises about the kernel hold for each release, and fail on another page size."""
    monkeypatch.setattr(checks, "LibSystem", mac_of(release).kernel)
    size = mac_of(release).kernel().page_bytes()
    for printed, verdict in ((size, "pass"), (size // 2, "fail")):
        text = f"Mach Virtual Memory Statistics: (page size of {printed} bytes)"
        monkeypatch.setattr(checks, "output", lambda *argv, text=text: text)
        assert play("pages", "…")["verdict"] == verdict
    rows = [play(name, "…") for name in ("memory", "level")]
    assert [row["verdict"] for row in rows] == ["pass", "pass"], rows


def test_a_recorded_gpu(tmp_path, monkeypatch):
    """Layers and speed come from the engine's log; memory that a driver does not get back is a broken promise."""
    found = find_devices(plant("amd", tmp_path), "linux")
    monkeypatch.setattr(checks, "find_llama_server", lambda chosen: "/bin/llama-server")
    here = Devices(found, parse_listed(listing("amd")), "/bin/llama-server")
    monkeypatch.setattr(checks, "detect_devices", lambda *_: here)

    def run(*argv):
        assert "accelerator: rocm" in Path(argv[argv.index("-f") + 1]).read_text("utf-8")
        folder = Path(argv[argv.index("--state-dir") + 1]) / "logs"
        folder.mkdir(parents=True)
        (folder / "demo.log").write_text(LOG)
        return "an answer"

    monkeypatch.setattr(checks, "output", run)
    for lost, verdict in ((1 << 20, "pass"), (1 << 30, "fail")):
        after = [attrs.evolve(each, free_bytes=(each.free_bytes or 0) - lost) for each in found]
        monkeypatch.setattr(checks.devices, "find_devices", lambda after=after: after)
        row = play("gpu", **STEPS["gpu"])
        assert row["verdict"] == verdict, row
    monkeypatch.setattr(checks, "detect_devices", lambda *_: Devices())
    assert play("gpu", **STEPS["gpu"])["observed"] == "this machine has no GPU"

"""A machine with a GPU as its owner sees it: its files and its llama-server are recorded, LLMKube is real."""

import shlex
import sys
from functools import partial
from pathlib import Path

import pytest

from device_trees import listing, plant
from e2e.one_machine import served
from e2e.separate_programs import REAL_ENGINE, eventually
from e2e.up_process import ANSWER, FREE_PORTS, open_up, run_program

pytestmark = pytest.mark.e2e

LAYERS = """load_tensors: offloading output layer to GPU
load_tensors: offloaded 3/3 layers to GPU
load_tensors:        CUDA0 model buffer size =     1.00 MiB
"""


def llama_server(folder, devices, layers=""):
    """A llama-server for CUDA: it lists devices, and logs these lines if layers are for a device."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "devices.txt").write_text(devices)
    (folder / "layers.txt").write_text(layers)
    path, here = folder / "llama-server", shlex.quote(str(folder))
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --list-devices ] && exec cat {here}/devices.txt\n'
        f'case "$*" in *"--n-gpu-layers 99"*) cat {here}/layers.txt;; esac\nexec {REAL_ENGINE} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


async def test_a_gpu_is_used_without_a_flag_and_a_wrong_one_is_refused(tmp_path):
    """Models without an accelerator are for the GPU; commands show what the engine did; a CPU build is refused."""
    (tmp_path / "home").mkdir()
    root, script = plant("nvidia", tmp_path / "root"), str(Path(__file__).with_name("on_devices.py"))
    on_machine = (sys.executable, script, str(root))
    file = tmp_path / "all.yaml"
    named = served("plain").replace("  hardware:\n    accelerator: cpu\n", "")
    file.write_text(f"{named}\n---\n{served('slow')}\n")
    args = ("--state-dir", str(tmp_path / "state"), *FREE_PORTS, "-f", str(file), "--llama-server")
    engine = llama_server(tmp_path / "cuda", listing("nvidia"), LAYERS)
    async with open_up(tmp_path, *args, engine, prefix=on_machine) as up:
        await up.urls()
        run = partial(run_program, tmp_path / "home", kubeconfig=tmp_path / "state" / "kubeconfig")
        for name in ("plain", "slow"):
            code, out, err = await run("chat", name, "What is LLMKube?")
            assert (code, ANSWER in " ".join(out.split())) == (0, True), err

        async def both():
            _, out, _ = await run("ps")
            rows = {row.split()[0]: row for row in out.splitlines()[1:]}
            return rows if " cuda " in rows.get("plain", "") and " cpu " in rows.get("slow", "") else None

        assert await eventually(both, bool)
        _, shown, _ = await run("status", "plain")
        assert "computed on  CUDA0, 3 of 3 layers" in shown
        assert "SpecHonoured    True" in shown
        _, shown, _ = await run("status", "slow")
        assert "computed on  CPU" in shown
    cpu_build = llama_server(tmp_path / "cpu", "Available devices:\n")
    async with open_up(tmp_path, *args, cpu_build, "--accelerator", "cuda", prefix=on_machine) as up:
        assert await up.process.wait() == 1
    assert "--accelerator cuda: found NVIDIA GeForce RTX 2060 (memory unknown, /proc/driver/nvidia, driver" in up.err
    assert "lists no CUDA device; pip install --force-reinstall xllamacpp --index-url" in " ".join(up.err.split())

"""Where the program of a runtime is found, and what is said where it is not."""

from pathlib import Path

import attrs
import pytest

from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.engine import programs
from llmkube.supervisor.engine.programs import EngineNotFoundError, find_program, read_head
from llmkube.supervisor.nouns.settings import AgentSettings

MLX = HOST_RUNTIMES["mlx-lm"]
SETTINGS = AgentSettings("h", Path("/s"), Path("/s"), "/llama-server")


def test_a_program_that_is_installed_later_is_found_later(tmp_path, monkeypatch):
    """PATH is looked at each time; what the owner names wins."""
    monkeypatch.setattr(programs, "HOMEBREW", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineNotFoundError, match=r"no mlx_lm.server on this host; install it with pip install mlx-lm"):
        find_program(SETTINGS, MLX)
    (tmp_path / "mlx_lm.server").write_text("#!/bin/sh\n")
    (tmp_path / "mlx_lm.server").chmod(0o755)
    assert find_program(SETTINGS, MLX) == str(tmp_path / "mlx_lm.server")
    assert find_program(attrs.evolve(SETTINGS, programs={"mlx-lm": "/mine"}), MLX) == "/mine"
    assert find_program(SETTINGS, HOST_RUNTIMES["llamacpp"]) == "/llama-server"


def test_a_script_that_cannot_be_read_is_told(tmp_path):
    """It is the world's fault, and is looked at again."""
    with pytest.raises(EngineNotFoundError, match="cannot read"):
        read_head(str(tmp_path / "gone"))

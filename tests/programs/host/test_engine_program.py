import importlib.util
import sys
from pathlib import Path

import pytest

from llmkube.base.errors import UserError
from llmkube.programs.config.host_config import HostConfig
from llmkube.programs.host.engine_program import engine_settings, find_llama_server, further_programs
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES


def program(folder, name="llama-server", mode=0o755):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_the_chosen_program_wins(tmp_path):
    """--llama-server beats what is on PATH."""
    program(tmp_path / "bin")
    mine = program(tmp_path / "mine", "my-server")
    assert find_llama_server(mine, search_path=str(tmp_path / "bin")) == mine


def test_a_bare_name_is_looked_up(tmp_path):
    """--llama-server may be a name on PATH."""
    mine = program(tmp_path / "bin", "llama-server-b7000")
    assert find_llama_server(type(mine)("llama-server-b7000"), search_path=str(tmp_path / "bin")) == mine


def test_a_program_in_the_working_directory(tmp_path, monkeypatch):
    """--llama-server ./llama-server is the file here, even when PATH has one of that name."""
    program(tmp_path / "bin")
    mine = program(tmp_path / "here")
    monkeypatch.chdir(mine.parent)
    assert find_llama_server(type(mine)("./llama-server"), search_path=str(tmp_path / "bin")) == mine


def test_path_beats_the_bundled_program(tmp_path):
    """An installed llama-server is taken before the bundled one."""
    installed = program(tmp_path / "bin")
    program(tmp_path / "beside", "llmkube-llama-server")
    assert find_llama_server(None, search_path=str(tmp_path / "bin"), beside=tmp_path / "beside") == installed


def without_homebrew(monkeypatch):
    monkeypatch.setattr("llmkube.programs.host.engine_program._HOMEBREW", ())


def test_the_bundled_program_is_the_last_resort(tmp_path, monkeypatch):
    """Without any llama-server, the one next to Python is taken if its engine is installed."""
    without_homebrew(monkeypatch)
    bundled = program(tmp_path / "beside", "llmkube-llama-server")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    assert find_llama_server(None, search_path="", beside=tmp_path / "beside") == bundled


def test_a_bundled_program_without_its_engine_does_not_count(tmp_path, monkeypatch):
    """Without the extra, the error says how to get an engine."""
    without_homebrew(monkeypatch)
    program(tmp_path / "beside", "llmkube-llama-server")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"pip install xllamacpp or brew install llama\.cpp"):
        find_llama_server(None, search_path="", beside=tmp_path / "beside")


def test_what_cannot_be_run_is_named(tmp_path):
    """A chosen file that is missing, not executable or a folder is refused with that reason."""
    with pytest.raises(UserError, match="does not exist"):
        find_llama_server(tmp_path / "nothing")
    with pytest.raises(UserError, match="is not executable"):
        find_llama_server(program(tmp_path / "bin", mode=0o644))
    with pytest.raises(UserError, match="is a folder"):
        find_llama_server(tmp_path)


def test_other_programs_are_those_that_are_named(tmp_path):
    """One that is named has to be there; the agent looks for the others itself, when a service asks for one."""
    mine = program(tmp_path / "bin", "mlx_lm.server")
    assert further_programs(HostConfig(mlx_server=mine)) == {"mlx-lm": str(mine)}
    assert further_programs(HostConfig()) == {}
    with pytest.raises(UserError, match=r"--vllm-metal: .* does not exist; give the path of a vllm program"):
        further_programs(HostConfig(vllm_metal=tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("installed", "taken"),
    [((), "mlx-lm"), (("mlx_lm.server",), "mlx-lm"), (("omlx",), "omlx"), (("omlx", "mlx_lm.server"), "omlx")],
)
def test_mlx_is_served_by_what_the_host_has(tmp_path, monkeypatch, installed, taken):
    """By oMLX where its program is, on PATH or of Homebrew; else by mlx-lm."""
    monkeypatch.setattr("llmkube.programs.host.engine_program._HOMEBREW", (str(tmp_path / "brew"),))
    for name in installed:
        program(tmp_path / "brew", name)
    path = str(tmp_path / "bin")
    assert engine_settings(HostConfig(), search_path=path)["mlx_runtime"] == taken
    mine = program(tmp_path / "mine", "my-omlx")
    named = engine_settings(HostConfig(omlx_bin=mine), search_path=path)
    assert (named["mlx_runtime"], named["programs"]) == ("omlx", {"omlx": str(mine)})


def test_the_programs_before_shared_daemons_are_commands_that_run():
    """Of this Python, whichever daemon: the agent hands them to runtimes that name no module."""
    fronts = engine_settings(HostConfig())["fronts"]
    assert set(fronts) == {name for name, runtime in HOST_RUNTIMES.items() if runtime.memory_elsewhere}
    for executable, flag, module in fronts.values():
        assert (executable, flag) == (sys.executable, "-m")
        assert importlib.util.find_spec(module)


def test_engines_are_told_where_the_owners_omlx_is(tmp_path, monkeypatch):
    """By variables that hold paths and numbers, and no key."""
    monkeypatch.chdir(tmp_path)
    said = engine_settings(HostConfig(omlx_port=8001, omlx_key_file=Path("key"), omlx_startup_seconds=30.0))
    assert said["variables"] == {
        "OMLX_PORT": "8001",
        "LLMKUBE_OMLX_STARTUP_SECONDS": "30",
        "LLMKUBE_OMLX_KEY_FILE": str(tmp_path / "key"),
    }
    assert "LLMKUBE_OMLX_KEY_FILE" not in engine_settings(HostConfig())["variables"]

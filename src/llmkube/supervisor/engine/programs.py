"""Where the program of a runtime is: where the host's owner says, else on PATH or where Homebrew puts programs."""

import os
import shutil
from pathlib import Path
from typing import Final

from llmkube.base.errors import WorldError
from llmkube.k8s.crd.pairing import DEFAULT_RUNTIME
from llmkube.runtimes.process.host_runtime import HostRuntime
from llmkube.supervisor.nouns.settings import AgentSettings

HOMEBREW: Final = ("/opt/homebrew/bin", "/usr/local/bin")
"""launchd starts agents with neither on PATH."""


class EngineNotFoundError(WorldError):
    """The program of an engine is missing, or is not what it should be."""

    reason = "EngineNotFound"


def find_program(settings: AgentSettings, runtime: HostRuntime) -> str:
    """Return the path of a runtime's program; one that is installed later is found later.

    Raises:
        EngineNotFoundError: No program of that name is where it is looked for.
    """
    if runtime.name == DEFAULT_RUNTIME:
        return settings.llama_server  # was looked for when the agent started, the bundled one included
    if chosen := settings.programs.get(runtime.name):
        return chosen
    command = runtime.program.command
    found = shutil.which(command, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *HOMEBREW]))
    if found is None:
        raise EngineNotFoundError(f"no {command} on this host; {runtime.program.remedy}")
    return str(Path(found).absolute())


def read_head(path: str) -> str:
    """Return the first lines of a script; blocks.

    Raises:
        EngineNotFoundError: It cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError as error:
        raise EngineNotFoundError(f"cannot read {path}: {error.strerror or error}") from error

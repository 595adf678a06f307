"""An `ollama serve` of our own, where no server answers: at a port of its own."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import attrs

from llmkube.programs.daemon_engine.ollama.daemon_api import DaemonApi
from llmkube.programs.daemon_engine.server_process import Server, ServerCommand

START_SECONDS: Final = 60.0
"""Until it answers: it looks for GPUs first."""


@attrs.frozen
class OllamaProgram:
    """Starts Ollama's own program.

    Attributes:
        program: Its name or path.
        api: The way to servers.
        port: A free one on loopback.
        environ: The environment that it inherits.
    """

    program: str
    api: DaemonApi
    port: int
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Server]:
        """Run one during the block, and end it afterwards.

        Raises:
            NoDaemonError: It does not start.
        """
        where = f"127.0.0.1:{self.port}"
        # NOPRUNE: at its start it would remove blobs that no model names yet, and its store may be shared.
        # NUM_PARALLEL: each further one would take a context's memory more than the agent has promised.
        ours = {"OLLAMA_HOST": where, "OLLAMA_NOPRUNE": "1", "OLLAMA_NUM_PARALLEL": "1"}
        command = ServerCommand(
            name="Ollama",
            argv=(self.program, "serve"),
            environ={**self.environ, **ours},
            server=Server(f"http://{where}"),
            answers=attrs.evolve(self.api, url=f"http://{where}").version,
            start_seconds=START_SECONDS,
        )
        async with command.running() as server:
            yield server

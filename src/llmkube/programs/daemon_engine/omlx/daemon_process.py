"""An `omlx serve` of our own: at a port of its own, with one model, a key of its own and a folder for all it writes.

oMLX keeps what its command line says, in `~/.omlx` unless it is given another folder: so the settings of the host's
owner stay as they are.
"""

import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.programs.daemon_engine.omlx.daemon_api import NAME, DaemonApi
from llmkube.programs.daemon_engine.omlx.options import Options
from llmkube.programs.daemon_engine.omlx.own_folder import OwnFolder, new_folder
from llmkube.programs.daemon_engine.server_process import NoDaemonError, Server, ServerCommand

_REMOVE_SECONDS: Final = 2.0
_NOT_IN_NAMES: Final = re.compile(r"[^\w.-]+")


@attrs.frozen
class OmlxProgram:
    """Starts oMLX's own program for one model.

    Attributes:
        options: What to serve.
        api: The way to servers.
        port: A free one on loopback.
        environ: The environment that it inherits.
    """

    options: Options
    api: DaemonApi
    port: int
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Server]:
        """Run one during the block; end it afterwards, and remove what it has written.

        Raises:
            NoDaemonError: It does not start, or there is no place for its folder.
        """
        key = secrets.token_urlsafe(24)
        try:
            held = await trio.to_thread.run_sync(made_folder, self.options)
        except OSError as error:
            raise NoDaemonError(f"no folder can be made for an oMLX of our own: {error.strerror or error}") from error
        folder = held.path
        try:
            server = Server(f"http://127.0.0.1:{self.port}", key=key)
            inherited = {name: value for name, value in self.environ.items() if not name.startswith("OMLX_")}
            command = ServerCommand(
                name=NAME,
                argv=command_line(self.options.program, folder, self.port),
                # In the environment, which other users do not see; a command line they do.
                environ={**inherited, "OMLX_API_KEY": key, "OMLX_HF_CACHE_ENABLED": "false"},
                server=server,
                answers=attrs.evolve(self.api, url=server.url, key=key).models,
                start_seconds=self.options.start_seconds,
            )
            async with command.running() as running:
                yield running
        finally:
            with trio.move_on_after(_REMOVE_SECONDS, shield=True):
                await trio.to_thread.run_sync(held.remove, abandon_on_cancel=True)


def command_line(program: str, folder: Path, port: int) -> tuple[str, ...]:
    """Return how one of our own is started, with its folder."""
    return (
        program,
        "serve",
        "--model-dir",
        str(folder / "models"),
        "--base-path",
        str(folder / "base"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        # Its cache of prompts may take a tenth of the disk, and would be gone with the service.
        "--no-cache",
        # Each further one would take a context's memory more than the agent has promised.
        "--max-concurrent-requests",
        "1",
    )


def made_folder(options: Options) -> OwnFolder:
    """Make the folder of one: a link to the model, and settings; blocks.

    Raises:
        OSError: It cannot be made.
    """
    held = new_folder()
    folder = held.path
    (folder / "models").mkdir()
    (folder / "base").mkdir()
    (folder / "models" / link_name(options.model, embeds=options.embeds)).symlink_to(options.model.absolute())
    if options.context:
        sampling = {"max_context_window": options.context, "max_context_window_policy": options.context}
        (folder / "base" / "settings.json").write_text(json.dumps({"version": "1.0", "sampling": sampling}), "utf-8")
    return held


def link_name(model: Path, *, embeds: bool) -> str:
    """Return what a model is called: oMLX tells embedding models from others by their names, where their files do not.

    A name that says nothing of that is the folder's own.
    """
    name = _NOT_IN_NAMES.sub("-", model.name).strip(".-") or "model"
    if embeds:
        return name if "embed" in name.lower() else f"{name}-embedding"
    return "model" if re.search(r"embed|rerank", name, re.IGNORECASE) else name

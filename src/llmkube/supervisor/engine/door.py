"""The door of a host: one process that accepts the requests of all services that are loaded on request.

Like the proxy of an engine it is a process of its own, which the agent starts, adopts and stops. It outlives a killed
agent, and holds requests meanwhile; the next agent reads from it which services they need.
"""

import os
import tempfile
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.supervisor.engine.proxy import EngineProxy
from llmkube.supervisor.values.ports import Shutdown

MAX_SOCKET_PATH: Final = 100
"""Longest path of a Unix socket in bytes: macOS has 104, with the terminating NUL."""


def door_cookie(state_dir: Path) -> str:
    """Return the cookie of a host's door; its process has that of a proxy of this engine."""
    return f"door-{sha256(str(state_dir).encode()).hexdigest()[:16]}"


def socket_path(state_dir: Path) -> Path:
    """Return the path of the door's socket: there, or in a temporary folder if that path is too long."""
    path = state_dir / "door.socket"
    if len(bytes(path)) <= MAX_SOCKET_PATH:
        return path
    return Path(tempfile.gettempdir()) / f"llmkube-{door_cookie(state_dir)}" / "socket"


def check_socket_folder(folder: Path) -> None:
    """Check that the folder is this user's: agent and door exchange keys of engines in it.

    Raises:
        PermissionError: It, or the link to it, belongs to another user.
    """
    if folder.stat().st_uid != os.getuid() or folder.lstat().st_uid not in {os.getuid(), 0}:
        raise PermissionError(f"{folder} belongs to another user; choose a shorter path with --state-dir")


@attrs.define(eq=False)
class HostDoor:
    """The door's process and files.

    Attributes:
        process: Keeps it running.
        socket: Its socket.
    """

    process: EngineProxy
    socket: Path

    @property
    def is_left(self) -> bool:
        """Whether an earlier agent has left a door."""
        return self.process.path.exists()

    def running(self, shutdown: Shutdown) -> AbstractAsyncContextManager[None]:
        """Keep the door running during the block, and stop it afterwards, unless the next agent takes it over."""
        return self.process.running(shutdown)

    async def connect(self) -> trio.abc.Stream:
        """Return a connection to it.

        Raises:
            OSError: It does not accept any, or not yet, or its folder is another user's.
        """
        check_socket_folder(self.socket.parent)
        return await trio.open_unix_socket(self.socket)


@attrs.define(eq=False)
class LineReader:
    """Reads the lines of a stream."""

    stream: trio.abc.ReceiveStream
    _received: bytearray = attrs.field(factory=bytearray)

    async def read_lines(self) -> list[bytes]:
        """Return the next whole lines; none at the end of the stream.

        Raises:
            trio.BrokenResourceError: The connection is lost.
        """
        while b"\n" not in self._received:
            piece = await self.stream.receive_some()
            if not piece:
                return []
            self._received += piece
        *lines, rest = bytes(self._received).split(b"\n")
        self._received[:] = rest
        return lines

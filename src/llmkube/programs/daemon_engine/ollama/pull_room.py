"""A pull by Ollama ends before it fills the disk: by the sizes that its progress names, as soon as it names them.

Ollama fetches the files of a model one after the other and tells the size of each with its first line; the weights come
first. Closing the answer ends the pull.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.programs.daemon_engine.ollama.daemon_api import DaemonApi, Tell
from llmkube.weights.errors import NoSpaceError
from llmkube.weights.store.disk import free_bytes, margin_of

REMEDY: Final = "ollama rm removes models"

_ASKED_MODELS: Final = 3

Free = Callable[[Path], Awaitable[int]]
"""Returns how many bytes are free where a folder is, or will be."""


@attrs.define(eq=False)
class PullRoom:
    """The room that one pull has.

    Attributes:
        folder: Ollama's folder of models.
        free_bytes: What was free there before.
        needed_bytes: What is to be written for all files that have been named so far.
    """

    folder: Path
    free_bytes: int
    needed_bytes: int = 0
    _missing: dict[str, int] = attrs.field(factory=dict)

    def take(self, text: str, done: int, total: int) -> None:
        """Take a line of its progress into account.

        Raises:
            NoSpaceError: What has been named does not fit.
        """
        if total and text not in self._missing:
            self._missing[text] = max(total - done, 0)
            self.needed_bytes = sum(self._missing.values())
            refuse_too_much(self.folder, self.needed_bytes, self.free_bytes)


def refuse_too_much(folder: Path, needed_bytes: int, free: int) -> None:
    """Refuse what does not fit, with a margin.

    Raises:
        NoSpaceError: It does not fit.
    """
    needed = needed_bytes + margin_of(needed_bytes)
    if needed_bytes > 0 and free < needed:
        store = "Ollama's models folder"
        raise NoSpaceError(str(folder), needed_bytes=needed, free_bytes=max(free, 0), store=store, remedy=REMEDY)


async def measured(api: DaemonApi, free: Free) -> PullRoom:
    """Return the room of a pull that is about to begin.

    Args:
        api: The server: where its models are is what it says of one of them; of one that has none, what OLLAMA_MODELS
            of this program says, or where Ollama has them by itself.
        free: Looks at the disk.

    Raises:
        DaemonError: It does not answer.
    """
    folder = await _told_folder(api) or folder_of(os.environ)
    return PullRoom(folder, await free(folder))


async def pull_within(api: DaemonApi, name: str, room: PullRoom, tell: Tell) -> None:
    """Have a model pulled, and end that as soon as it is known not to fit.

    Raises:
        DaemonError: It was not pulled.
        NoSpaceError: It does not fit.
    """

    def take(text: str, done: int, total: int) -> None:
        room.take(text, done, total)
        tell(text, done, total)

    await api.pull(name, take)


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return where an Ollama of this user keeps its models."""
    said = environ.get("OLLAMA_MODELS", "")
    return Path(said).expanduser() if said else Path(environ.get("HOME") or Path.home()) / ".ollama" / "models"


async def _told_folder(api: DaemonApi) -> Path | None:
    for name in list(await api.sizes())[:_ASKED_MODELS]:
        if (folder := await api.folder_of(name)) is not None:
            return folder
    return None


async def free_near(folder: Path) -> int:
    """Return how many bytes are free where a folder is, or will be."""
    return await trio.to_thread.run_sync(_free_bytes, folder, abandon_on_cancel=True)


def _free_bytes(folder: Path) -> int:
    for each in (folder, *folder.parents):
        try:
            return free_bytes(each)
        except OSError:  # it is not there yet, or another user's
            continue
    return free_bytes(Path(os.sep))

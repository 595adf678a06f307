"""The private file with the API keys of an engine, one per line; it exists as long as the engine.

An engine reads it once, at start. Keys never appear on a command line, which every user of the machine can read.
"""

import contextlib
import secrets
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.private_files import make_private_folder, write_private
from llmkube.supervisor.values.api_keys import digest_of
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.journal import Entry
from llmkube.supervisor.values.ports import Shutdown

KEYS_FOLDER: Final = "keys"
_KEY_BYTES: Final = 32


def new_key() -> str:
    """Return a new random key."""
    return secrets.token_urlsafe(_KEY_BYTES)


def key_path(state_dir: Path, cookie: str) -> Path:
    """Return the key file of the engine with this cookie."""
    return state_dir / KEYS_FOLDER / cookie


def write_keys(path: Path, keys: Sequence[str]) -> None:
    """Write the keys of an engine that is about to start; blocks.

    Raises:
        OSError: The file cannot be written.
    """
    make_private_folder(path.parent)
    write_private(path, "".join(f"{key}\n" for key in keys), durable=False)


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the keys of an engine that an earlier agent started; none if they cannot be read. Blocks."""
    try:
        return tuple(path.read_text("ascii").splitlines())
    except (OSError, ValueError):
        return ()


def with_client_keys(entry: Entry, keys: Sequence[str]) -> Entry:
    """Return a journal entry with its clients' keys, taken from the keys in the engine's key file.

    An engine that restarts while the API server is away needs them; the journal stores only their digest.
    """

    def known(launch: Launch) -> Launch:
        theirs = tuple(keys[1:])  # ours is the first
        fits = launch.plan.keys_digest and digest_of(theirs) == launch.plan.keys_digest
        return attrs.evolve(launch, client_keys=theirs) if fits else launch

    return attrs.evolve(entry, launch=known(entry.launch), fallback=known(entry.fallback) if entry.fallback else None)


@contextlib.contextmanager
def removed_after_exit(path: Path, shutdown: Shutdown) -> Iterator[None]:
    """Remove an engine's file after the block, unless the engine keeps running for the next agent."""
    try:
        yield
    finally:
        if not shutdown.keep:
            remove_private(path)


def remove_private_files(folder: Path, kept: Collection[str]) -> None:
    """Remove all files of a folder, including partial ones, except those of these names; blocks."""
    for path in folder.glob("*"):
        if path.name not in kept:
            remove_private(path)


def remove_private(path: Path) -> None:
    """Remove an engine's private file, if it is there."""
    with contextlib.suppress(OSError):  # the key of an exited engine gives access to nothing
        path.unlink(missing_ok=True)

"""The keys that routers of this process read: from Secrets to files that no other user can read, and away again."""

import base64
import binascii
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import trio

from llmkube.base.private_files import write_private
from llmkube.k8s.builtins import Secret
from llmkube.k8s.client import Client
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.router.config.compile_backend import KeyFile

_FOLDER_MODE: Final = 0o700

Contents = Mapping[Path, bytes]


async def read_secrets(client: Client, namespace: str, wanted: Iterable[KeyFile]) -> Contents:
    """Return what each file shall hold; a Secret or an entry that is not there gives none.

    Raises:
        ApiError: The API server could not or would not.
    """
    found: dict[str, Mapping[str, bytes]] = {}
    contents: dict[Path, bytes] = {}
    for each in wanted:
        if each.secret not in found:
            found[each.secret] = await _entries(client, Key(namespace, each.secret))
        entries, path = found[each.secret], Path(each.path)
        if not each.key:
            contents |= {path / name: value for name, value in entries.items()}
        elif each.key in entries:
            contents[path] = entries[each.key]
    return contents


async def write_files(folder: Path, contents: Contents, folders: Iterable[Path]) -> None:
    """Have a folder hold these files and no others; a file that holds the same is left alone.

    Args:
        folder: Where all of them are.
        contents: What each holds.
        folders: Those that are there even when nothing is in them.

    Raises:
        OSError: The disk does not take it.
    """
    await trio.to_thread.run_sync(_write_files, folder, contents, tuple(folders))


async def remove_leftovers(folder: Path, keys: str) -> None:
    """Remove the keys of all routers, which a killed process has left; those that run get theirs again."""

    def remove() -> None:
        for each in folder.glob(f"*/{keys}"):
            shutil.rmtree(each, ignore_errors=True)

    await trio.to_thread.run_sync(remove)


async def remove_files(folder: Path) -> None:
    """Remove the keys of a router that is gone."""
    await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))


def _write_files(folder: Path, contents: Contents, folders: tuple[Path, ...]) -> None:
    for one in {folder, *folders, *(path.parent for path in contents)}:
        one.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    for path, value in contents.items():
        if not path.is_file() or path.read_bytes() != value:
            write_private(path, value, durable=False)  # it is in the API server's store, which lasts
    for path in folder.rglob("*"):
        if path.is_file() and path not in contents:
            path.unlink()


async def _entries(client: Client, key: Key) -> Mapping[str, bytes]:
    try:
        secret = await client.get(Secret, key)
    except NotFoundError:
        return {}
    return {name: value for name, text in secret.data.items() if (value := _decoded(text)) is not None}


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None

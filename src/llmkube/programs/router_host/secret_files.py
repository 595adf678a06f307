"""Copy the keys of this process's routers from Secrets to private files, and remove them again."""

import base64
import binascii
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmkube.base.private_files import make_private_folder, write_private
from llmkube.k8s.builtins import Secret
from llmkube.k8s.client import Client
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.router.config.compile_backend import KeyFile

Contents = Mapping[Path, bytes]


async def read_secrets(client: Client, namespace: str, wanted: Iterable[KeyFile]) -> Contents:
    """Return the content of each file; there is none for a missing Secret or entry.

    Raises:
        ApiError: A Secret cannot be read from the API server.
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


def write_files(folder: Path, contents: Contents, folders: Iterable[Path]) -> None:
    """Write these files below a folder and remove all others; unchanged files are not written. Blocks.

    Args:
        folder: Folder of the files.
        contents: Content by path.
        folders: Folders to create even if they stay empty.

    Raises:
        OSError: The files cannot be written.
    """
    for one in {folder, *folders, *(path.parent for path in contents)}:
        make_private_folder(one)
    for path, value in contents.items():
        if not path.is_file() or path.read_bytes() != value:
            write_private(path, value, durable=False)  # the API server's store has a durable copy
    for path in folder.rglob("*"):
        if path.is_file() and path not in contents:
            path.unlink()


def remove_files(*folders: Path) -> None:
    """Remove the keys in these folders. Blocks."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


async def _entries(client: Client, key: Key) -> Mapping[str, bytes]:
    try:
        secret = await client.get(Secret, key)
    except NotFoundError:
        return {}
    return _decoded_entries(secret)


def key_texts(secret: Secret | None) -> dict[str, str]:
    """Return the entries of a Secret of clients' keys, none if it does not exist; only ASCII is valid in keys."""
    entries = _decoded_entries(secret).items() if secret is not None else ()
    return {name: value.decode("ascii", "replace") for name, value in entries}


def _decoded_entries(secret: Secret) -> Mapping[str, bytes]:
    """Return the entries of a Secret that are valid base64."""
    return {name: value for name, text in secret.data.items() if (value := _decoded(text)) is not None}


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None

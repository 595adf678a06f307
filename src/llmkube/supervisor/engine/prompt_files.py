"""Files of prompts that engines have computed: one per slot of llama-server, with a record of what it fits. Blocks.

A file holds the conversation of its slot. It is used only if its size and its SHA-256 are those of its record: an
engine would also restore a damaged one.
"""

import array
import contextlib
import hashlib
import json
import shutil
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.private_files import file_stem, write_private
from llmkube.k8s.resource import Key

FOLDER: Final = "prompts"
_RECORD: Final = ".json"
_REFUSED: Final = ".refused"
_FLOOR: Final = "floor"
_HEAD: Final = struct.Struct("<III")  # magic, version, number of words
_MEDIA_WORDS: Final = 3  # builds with images write -1, a version and the number of tokens before the tokens
_PRIVATE: Final = 0o600


@attrs.frozen
class SavedPrompt:
    """Record of a saved prompt.

    Attributes:
        digest: Digest of everything that determines whether an engine may restore it.
        owner: The uid of its service.
        slot: Number of its slot.
        tokens: Its number of tokens.
        size_bytes: Size of its file.
        sha256: Digest of its file.
        priority: Value of what it saves, for each byte; the lowest one is removed first.
        saved_at: When it was saved, as text.
    """

    digest: str
    owner: str
    slot: int
    tokens: int
    size_bytes: int
    sha256: str
    priority: float
    saved_at: str = ""

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.digest[:16]}-{self.slot}"

    @property
    def new_name(self) -> str:
        """Name of its file until it is recorded; an earlier file stays complete while an engine writes this one."""
        return f"{self.name}.new"


def folder_of(root: Path, key: Key) -> Path:
    """Return the folder of a service's prompts."""
    return root / key.namespace / file_stem(key.name)


def read_all(folder: Path) -> Iterator[tuple[Path, SavedPrompt]]:
    """Yield the files of a folder or of the folders in it, and their records; remove records that cannot be read."""
    for path in sorted(folder.rglob(f"*{_RECORD}")):
        try:
            prompt = SavedPrompt(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            path.unlink(missing_ok=True)
            continue
        yield path.with_suffix(""), prompt


def add(root: Path, folder: Path, prompt: SavedPrompt, limit_bytes: int) -> int:
    """Record a file that an engine has just written, and remove those of the lowest priority beyond the limit.

    Return its size.

    The priority of a new prompt starts at that of the last one that was removed, so that old ones lose against it
    without a clock (as in GreedyDual-Size).

    Args:
        root: The folder of all services.
        folder: That of its service.
        prompt: Its record, with the cost of computing it as priority.
        limit_bytes: Total size of all prompts.

    Raises:
        OSError: The file cannot be read, or the record cannot be written.
    """
    path, written = folder / prompt.name, folder / prompt.new_name
    written.chmod(_PRIVATE)
    size, digest = _measure(written)
    priority = _floor(root) + prompt.priority / max(size, 1)
    prompt = attrs.evolve(prompt, size_bytes=size, sha256=digest, priority=priority)
    written.replace(path)
    write_private(_record_of(path), json.dumps(attrs.asdict(prompt)), durable=False)
    trim(root, limit_bytes)
    return size


def put_back(folder: Path, prompt: SavedPrompt) -> None:
    """Write the record of a prompt again."""
    write_private(_record_of(folder / prompt.name), json.dumps(attrs.asdict(prompt)), durable=False)


def trim(root: Path, limit_bytes: int) -> None:
    """Remove the prompts of the lowest priority until the rest fits."""
    kept = sorted(read_all(root), key=lambda each: each[1].priority)
    total = sum(prompt.size_bytes for _, prompt in kept)
    for path, prompt in kept:
        if total <= limit_bytes:
            return
        remove(path)
        write_private(root / _FLOOR, repr(prompt.priority), durable=False)
        total -= prompt.size_bytes


def take(folder: Path, digest: str, owner: str) -> list[SavedPrompt]:
    """Return the intact prompts that an engine may restore, and remove what it must not.

    Their records are removed as well until they are put back: a prompt that ends its engine is not restored again.
    """
    taken = []
    for path, prompt in read_all(folder):
        if prompt.owner == owner and prompt.digest == digest:
            _record_of(path).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                if path.name == prompt.name and _measure(path) == (prompt.size_bytes, prompt.sha256):
                    taken.append(prompt)
        elif prompt.owner != owner:
            remove(path)
    remove_unfinished(folder, {prompt.name for prompt in taken})
    return taken


def remove_unfinished(folder: Path, kept: Collection[str] = ()) -> None:
    """Remove the files without a record, but those of these names: an engine has not finished them."""
    names = {*kept, *(path.name for path, _ in read_all(folder))}
    for path in folder.glob("*"):
        if path.suffix not in {_RECORD, _REFUSED} and path.name not in names:
            path.unlink(missing_ok=True)


def read_tokens(path: Path, count: int) -> list[int]:
    """Return the tokens of a saved slot.

    Raises:
        OSError: The file cannot be read.
        ValueError: The build of the engine writes another format.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        words = array.array("i")
        body = file.read(words.itemsize * (count + _MEDIA_WORDS))
        words.frombytes(body[: len(body) // words.itemsize * words.itemsize])
    total = _HEAD.unpack(head)[2] if len(head) == _HEAD.size else -1
    if total > count and list(words[:1]) == [-1] and list(words[2:3]) == [count]:
        words = words[_MEDIA_WORDS:]
    elif total != count:
        raise ValueError("the engine writes saved slots in an unknown format")
    tokens = words[:count].tolist()
    if len(tokens) != count or min(tokens, default=-1) < 0:
        raise ValueError("the saved slot contains more than text")
    return tokens


def remove(path: Path) -> None:
    """Remove a file and its record."""
    _record_of(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all prompts in it."""
    shutil.rmtree(folder, ignore_errors=True)


def keep_services(root: Path, keys: Collection[Key]) -> None:
    """Remove the prompts of all services but these."""
    kept = {folder_of(root, key) for key in keys}
    for folder in root.glob("*/*"):
        if folder not in kept:
            remove_folder(folder)


def refuse(folder: Path, digest: str) -> None:
    """Record that prompts of this digest cannot be restored."""
    write_private(folder / f"{digest[:16]}{_REFUSED}", b"", durable=False)


def is_refused(folder: Path, digest: str) -> bool:
    """Whether prompts of this digest cannot be restored."""
    return (folder / f"{digest[:16]}{_REFUSED}").exists()


def _floor(root: Path) -> float:
    """Return the priority of the last prompt that was removed for others."""
    try:
        return float((root / _FLOOR).read_text("ascii"))
    except (OSError, ValueError):
        return 0.0


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + _RECORD)


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest

"""Keys in files, read again when the files change, so that rotating a key needs no restart.

A file is read only if its stat differs. A file that cannot be read does not invalidate its key: between unlink and
rename of a rotation the old key stays valid.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import structlog

from llmkube.router.auth.issued_keys import IssuedKey, parse_key_file
from llmkube.router.policy.request_facts import Principal

MAX_KEY_BYTES: Final = 16 * 1024
_NO_FILE: Final = (0, 0, 0)
_TENANT_DIGITS: Final = 16

OWNER: Final = "owner"
"""Team whose keys may load, unload and pin models."""

Stamp = tuple[int, int, int]
Holder = tuple[IssuedKey, Principal]
"""A key and its holder."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def stamp_of(path: Path) -> Stamp:
    """Return a file's modification time, inode and size, which change when it does; zeros if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return _NO_FILE
    return found.st_mtime_ns, found.st_ino, found.st_size


@attrs.define(eq=False)
class BackendKeys:
    """The keys that are sent to backends, by file."""

    _read: dict[str, tuple[Stamp, str]] = attrs.field(factory=dict, repr=False)

    def key_of(self, path: str) -> str:
        """Return the key in the first line of a file; "" if there is none that can be read."""
        file, cached = Path(path), self._read.get(path)
        stamp = stamp_of(file)
        if cached is not None and stamp in (cached[0], _NO_FILE):
            return cached[1]
        try:
            with file.open("rb") as opened:
                text = opened.read(MAX_KEY_BYTES + 1)
            key = text.decode("ascii").strip().partition("\n")[0].strip() if len(text) <= MAX_KEY_BYTES else ""
        except (OSError, UnicodeDecodeError):
            return cached[1] if cached is not None else ""
        if not key or not key.isprintable():
            return ""
        self._read[path] = stamp, key
        return key


def holders_in(texts: Mapping[str, str]) -> dict[bytes, Holder]:
    """Return the holders of the keys in files, by digest; invalid lines are logged and ignored.

    Args:
        texts: The content of each team's file.
    """
    holders: dict[bytes, Holder] = {}
    for team, text in texts.items():
        for number, key in parse_key_file(text):
            if key.problem:
                _log.error("key ignored", team=team, line=number, error=key.problem)
                continue
            of, name, models = key.digest.hex()[:_TENANT_DIGITS], key.name, key.models
            principal = Principal(team=team, tenant=of, is_owner=team == OWNER, name=name, models=models)
            holders[key.digest] = key, principal
    return holders


@attrs.define(eq=False)
class KeyHolders:
    """The holders of keys, by digest, so that the time of a look-up reveals nothing about a key.

    Attributes:
        wall_clock: Returns the seconds since 1970, for the expiry of keys.
        holders: See `holders_in`.
    """

    wall_clock: Callable[[], float]
    holders: Mapping[bytes, Holder] = attrs.field(factory=dict, repr=False)

    def holder_of(self, digest: bytes) -> Principal | None:
        """Return the holder of a key; None if the key is unknown or has expired."""
        holder = self.holders.get(digest)
        return holder[1] if holder is not None and self.wall_clock() < holder[0].until else None

    def has_expired(self, digest: bytes) -> bool:
        """Return whether a key is known and has expired."""
        holder = self.holders.get(digest)
        return holder is not None and self.wall_clock() >= holder[0].until


NO_KEYS: Final = KeyHolders(lambda: 0.0)


@attrs.define(eq=False)
class ClientKeys(KeyHolders):
    """The holders of the keys in a folder.

    Attributes:
        folder: Folder with a file for each team; a line is a key, or a record of one (`issued_keys`).
    """

    folder: Path = attrs.field(kw_only=True)
    _stamps: Mapping[str, Stamp] = attrs.field(factory=dict)

    def refresh(self) -> None:
        """Read the folder again if a file has changed. Blocks for as long as small files take.

        Raises:
            OSError: The folder cannot be read; the keys read before stay valid.
        """
        files = sorted(each for each in self.folder.iterdir() if not each.name.startswith(".") and each.is_file())
        stamps = {each.name: stamp_of(each) for each in files}
        if stamps == self._stamps:
            return
        texts = {file.name: file.read_text(encoding="ascii", errors="replace") for file in files}
        self.holders, self._stamps = holders_in(texts), stamps

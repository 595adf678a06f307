"""Keys in files, read again when the files change, so that rotating a key needs no restart.

A file is read only if its stat differs. A file that cannot be read does not invalidate its key: between unlink and
rename of a rotation the old key stays valid.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from llmkube.router.auth.client_key import digest_of_key
from llmkube.router.policy.request_facts import Principal

MAX_KEY_BYTES: Final = 16 * 1024
_NO_FILE: Final = (0, 0, 0)
_TENANT_DIGITS: Final = 16

OWNER: Final = "owner"
"""Team whose keys may load, unload and pin models."""

Stamp = tuple[int, int, int]


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


@attrs.define(eq=False)
class ClientKeys:
    """The holders of the keys in a folder, by digest, so that the time of a look-up reveals nothing about a key.

    Attributes:
        folder: Folder with a file for each team; each line is a key.
    """

    folder: Path
    _holders: Mapping[bytes, Principal] = attrs.field(factory=dict, repr=False)
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
        holders: dict[bytes, Principal] = {}
        for file in files:
            for line in file.read_text(encoding="ascii", errors="replace").splitlines():
                if key := line.strip():
                    digest = digest_of_key(key)
                    tenant, is_owner = digest.hex()[:_TENANT_DIGITS], file.name == OWNER
                    holders[digest] = Principal(team=file.name, tenant=tenant, is_owner=is_owner)
        self._holders, self._stamps = holders, stamps

    def holder_of(self, digest: bytes) -> Principal | None:
        """Return the holder of a key; None if the key is unknown."""
        return self._holders.get(digest)

"""Find which users can change where a path leads, by checking every folder and link on it, from the root.

A folder is checked before its entries. So once a whole path has passed, only a trusted user could have replaced a part
of it since, and a later open by name opens what was checked.
"""

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import attrs

_MAX_LINKS: Final = 40  # as Linux


@attrs.frozen
class PathStep:
    """A folder on a path, and the path's entry in it: a folder, a link or the end; None if it does not exist."""

    folder: Path
    found: os.stat_result
    entry: os.stat_result | None

    def weakness(self, trusted: Collection[int] | None) -> str:
        """Return how another user could replace the entry; empty if only trusted users can.

        A group that may write to a folder is trusted like its owner: often it is the owner's own group.

        Args:
            trusted: User ids; None for the owners of the folder and of its entries.
        """
        if trusted is not None and self.found.st_uid not in trusted:
            return f"{self.folder} belongs to another user (uid {self.found.st_uid})"
        if self.found.st_mode & stat.S_IWOTH and not self.found.st_mode & stat.S_ISVTX:
            return f"every user may write to {self.folder}"
        if self.found.st_mode & stat.S_IWOTH and trusted is not None and self.entry is not None:
            # In a sticky folder only the owner of an entry can move it.
            return "" if self.entry.st_uid in trusted else f"the path's entry in {self.folder} belongs to another user"
        return ""


@attrs.frozen
class ResolvedPath:
    """Target of a path.

    Attributes:
        end: The path without links; a part that does not exist is kept as written.
        steps: Every folder that was read, from the root, including those that only contain links.
        error: Error that stopped the resolution before the end; None without one.
    """

    end: Path
    steps: tuple[PathStep, ...]
    error: OSError | None = None

    @property
    def found(self) -> os.stat_result | None:
        """Stat of the end; None if it does not exist or may not be read."""
        return None if self.error is not None or not self.steps else self.steps[-1].entry


def open_file(path: Path) -> int:
    """Open a file for reading and return its descriptor; does not wait for a writer if it is a pipe."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def resolve_links(path: Path) -> ResolvedPath:
    """Resolve an absolute path link by link; blocks on the disk, and returns its errors instead of raising them."""
    remaining = list(reversed(path.parts[1:]))
    current, steps, links = Path(path.anchor), [], 0
    try:
        while remaining:
            part = remaining[-1]
            if part == os.pardir:
                remaining.pop()
                current = current.parent
                continue
            folder = current.lstat()
            if not stat.S_ISDIR(folder.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(current))
            entry = _lstat(current / part)
            steps.append(PathStep(current, folder, entry))
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(current / part))
            if not stat.S_ISLNK(entry.st_mode):
                remaining.pop()
                current = current / part
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(current / part))
            target = Path((current / part).readlink())
            remaining.pop()
            current = Path(target.anchor) if target.is_absolute() else current
            remaining += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    except OSError as error:
        return ResolvedPath(Path(os.path.normpath(current.joinpath(*reversed(remaining)))), tuple(steps), error)
    return ResolvedPath(current, tuple(steps))


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def private_folder_weakness(folder: Path, *, uid: int, inner: Collection[str] = ()) -> str:
    """Return how another user could have written to a folder that must be private to one user; empty if none could.

    A folder that does not exist yet has the weakness of its path. An empty one of the user's is made private first.

    Args:
        folder: Absolute.
        uid: The user, who must own the folder and its contents; root may own parts of them.
        inner: Names of subfolders that are checked recursively; of others only the first level is checked.

    Raises:
        OSError: The folder cannot be read.
    """
    trusted = {0, uid}
    target = resolve_links(folder)
    found = target.found
    if found is not None and found.st_uid != uid:
        return f"it belongs to another user (uid {found.st_uid})"
    for step in target.steps:
        if weakness := step.weakness(trusted):
            return weakness
    if found is None or not stat.S_ISDIR(found.st_mode):
        return ""
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        if any(target.end.iterdir()):
            return "users other than its owner may write to it; check what is in it, then run chmod 700 on it"
        target.end.chmod(0o700)
        if any(target.end.iterdir()):
            return "another user has just written to it"
    closed = not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)  # then the modes of its entries do not matter
    return next((text for path in _entries(target.end, inner) if (text := _entry_weakness(path, trusted, closed))), "")


def _entries(folder: Path, inner: Collection[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        yield path
        if path.name in inner and not path.is_symlink():
            for root, folders, files in os.walk(path):
                yield from (Path(root, name) for name in (*folders, *files))


def _entry_weakness(path: Path, trusted: Collection[int], closed: bool) -> str:
    found = _lstat(path)
    if found is None:
        return ""  # removed meanwhile
    if stat.S_ISLNK(found.st_mode):
        target = resolve_links(path)
        weakness = next((text for step in target.steps if (text := step.weakness(trusted))), "")
        if weakness or target.found is None:
            return f"its symlink {path.name} leads out of it: {weakness}" if weakness else ""
        found, closed = target.found, False
    if found.st_uid not in trusted:
        return f"{path.name} in it belongs to another user (uid {found.st_uid})"
    if not closed and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return f"users other than its owner may write to {path.name} in it; check it, then run chmod go-w on it"
    return ""

"""Which users of this machine decide where a path leads: every folder and link on the way is looked at, from the root.

A folder is judged before what is in it. So once all of a way is found good, only a user who is trusted could have
swapped a part of it since, and what a look has found is what a later open by name finds.
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
    """A folder on the way, and what the way takes from it: a folder, a link or the end; None where nothing is."""

    folder: Path
    found: os.stat_result
    entry: os.stat_result | None

    def weakness(self, trusted: Collection[int] | None) -> str:
        """Say how another user could put something else in the entry's place; empty when only trusted ones can.

        A group that may write to a folder is trusted as its owner is: often it is the owner's own group.

        Args:
            trusted: User ids; None for the owners of the folder and of what is in it.
        """
        if trusted is not None and self.found.st_uid not in trusted:
            return f"{self.folder} belongs to another user (uid {self.found.st_uid})"
        if self.found.st_mode & stat.S_IWOTH and not self.found.st_mode & stat.S_ISVTX:
            return f"every user may write to {self.folder}"
        if self.found.st_mode & stat.S_IWOTH and trusted is not None and self.entry is not None:
            # In a sticky folder only the owner of an entry can move it.
            return (
                ""
                if self.entry.st_uid in trusted
                else f"what the path takes from {self.folder} belongs to another user"
            )
        return ""


@attrs.frozen
class ResolvedPath:
    """Where a path leads.

    Attributes:
        end: The path without links; what is missing of it is taken as written.
        steps: Every folder that was looked into, from the root on, also those that only hold links.
        error: Why the way could not be followed to its end, if it could not.
    """

    end: Path
    steps: tuple[PathStep, ...]
    error: OSError | None = None

    @property
    def found(self) -> os.stat_result | None:
        """What a stat says of the end; None where nothing is, or nothing that may be looked at."""
        return None if self.error is not None or not self.steps else self.steps[-1].entry


def open_file(path: Path) -> int:
    """Return a descriptor of a file for reading; a pipe in its place keeps no reader waiting for a writer."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)


def resolve_links(path: Path) -> ResolvedPath:
    """Follow an absolute path link by link; blocks on the disk, and raises nothing for what the disk says."""
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
    """Say how another user could have put something into a folder that has to be one user's own; empty for none.

    A folder that is not there yet has the weakness of the way to it. An empty one of the user's is made private first.

    Args:
        folder: Absolute.
        uid: The user, who has to own it with all that is in it; root may own parts of it.
        inner: Names of folders in it that are gone through to their ends; of others only the first level is looked at.

    Raises:
        OSError: It cannot be looked at.
    """
    trusted = {0, uid}
    way = resolve_links(folder)
    found = way.found
    if found is not None and found.st_uid != uid:
        return f"it belongs to another user (uid {found.st_uid})"
    for step in way.steps:
        if weakness := step.weakness(trusted):
            return weakness
    if found is None or not stat.S_ISDIR(found.st_mode):
        return ""
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        if any(way.end.iterdir()):
            return "others than its owner may write to it; look through what is in it, then chmod 700 it"
        way.end.chmod(0o700)
        if any(way.end.iterdir()):
            return "another user has just put something into it"
    closed = not found.st_mode & (stat.S_IXGRP | stat.S_IXOTH)  # then the modes of what is in it do not matter
    return next((text for path in _entries(way.end, inner) if (text := _weakness_of_entry(path, trusted, closed))), "")


def _entries(folder: Path, inner: Collection[str]) -> Iterator[Path]:
    for path in folder.iterdir():
        yield path
        if path.name in inner and not path.is_symlink():
            for root, folders, files in os.walk(path):
                yield from (Path(root, name) for name in (*folders, *files))


def _weakness_of_entry(path: Path, trusted: Collection[int], closed: bool) -> str:
    found = _lstat(path)
    if found is None:
        return ""  # removed meanwhile
    if stat.S_ISLNK(found.st_mode):
        way = resolve_links(path)
        weakness = next((text for step in way.steps if (text := step.weakness(trusted))), "")
        if weakness or way.found is None:
            return f"{path.name} in it leads elsewhere: {weakness}" if weakness else ""
        found, closed = way.found, False
    if found.st_uid not in trusted:
        return f"{path.name} in it belongs to another user (uid {found.st_uid})"
    if not closed and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return f"others than its owner may write to {path.name} in it; look through it, then chmod go-w it"
    return ""

"""Which files of this host an object may name: GGUF files below the folders that the host's owner has listed.

Who writes a Model learns nothing of any other file. A path that does not lie below a listed folder as it is written is
refused before the disk is touched; one whose links lead out is refused with the same words, whether or not there is a
file. Below a listed folder, what is no weights is as good as missing, and only the host's own log says more.

What was judged is what is used: a file is opened once it is known that no user but those whom the host's owner trusts
could put another in its place (`base.trusted_paths`), and only bytes of that very file are read.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.trusted_paths import ResolvedPath, resolve_links
from llmkube.weights.errors import SourceNotAllowedError, WeightsError, WeightsNotFoundError
from llmkube.weights.split_names import part_names
from llmkube.weights.store.local_files import FileSnapshot, describe_read_error

_MAGIC: Final = b"GGUF"
_FOLDER_SUFFIXES: Final = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt")
_MAX_FILES: Final = 1024


@attrs.frozen
class FolderSnapshot:
    """A folder, and what a stat says of each of its files that an engine may read, by name."""

    path: Path
    files: tuple[FileSnapshot, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def identity(self) -> str:
        """Changes with the name, the size or the time of change of any of them."""
        entries = [f"{file.path.name}:{file.size_bytes}:{file.mtime_ns}" for file in self.files]
        return f"{self.path}:{hashlib.sha256(chr(0).join(entries).encode('utf-8', 'surrogateescape')).hexdigest()}"


@attrs.frozen
class LocalSources:
    """The folders that the host's owner has listed; without any, no file of this host can be named.

    Attributes:
        folders: Absolute.
        store: The store of fetched weights, whose files have audiences of their own: no file in it can be named by its
            path, unless it is listed itself.
    """

    folders: tuple[Path, ...] = ()
    store: Path | None = None

    def admit(self, path: Path) -> FileSnapshot:
        """Return the file that an object may name by this path, or all parts of the split model of which it is one.

        Raises:
            SourceNotAllowedError: It lies, or leads, elsewhere.
            WeightsNotFoundError: There is no such file, or none that is weights.
        """
        names = _parts_of(path)
        found = {name: self._snapshot(path.with_name(name)) for name in names}
        if len(names) == 1:
            return found[path.name]
        # An engine finds the parts by their names, which only the folder has that the links to them are in.
        named = resolve_links(path.parent).end / path.name
        self._containing_folder(named, path)
        return attrs.evolve(found[path.name], path=named)

    def admit_folder(self, path: Path) -> FolderSnapshot:
        """Return the folder of safetensors that an object may name by this path; each of its files is judged.

        Raises:
            SourceNotAllowedError: It lies, or leads, elsewhere.
            WeightsNotFoundError: There is no such folder, or one of its files is none.
        """
        self._check_listed(path / "config.json")
        end = resolve_links(path).end
        self._containing_folder(end / "config.json", path)
        try:
            names = sorted(entry.name for entry in os.scandir(end) if entry.name.endswith(_FOLDER_SUFFIXES))
        except OSError as exc:
            raise WeightsNotFoundError.at(path, describe_read_error(exc)) from exc
        if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
            raise WeightsNotFoundError.at(path, "it has no config.json, or no .safetensors file beside it")
        if len(names) > _MAX_FILES:
            raise WeightsNotFoundError.at(path, f"it has more than {_MAX_FILES} files")
        return FolderSnapshot(end, tuple(self._snapshot(path / name, magic=b"") for name in names))

    def open(self, path: Path) -> int:
        """Return a descriptor of a file that `admit` takes, after judging it again; the caller closes it.

        Raises:
            SourceNotAllowedError: As `admit`.
            WeightsNotFoundError: As `admit`.
        """
        return self._open(path)[0]

    def admits(self, path: Path, *, folder: bool = False) -> bool:
        """Whether `admit`, or `admit_folder`, takes it."""
        try:
            (self.admit_folder if folder else self.admit)(path)
        except WeightsError:
            return False
        return True

    def _snapshot(self, path: Path, magic: bytes = _MAGIC) -> FileSnapshot:
        descriptor, snapshot = self._open(path, magic)
        os.close(descriptor)
        return snapshot

    def _open(self, path: Path, magic: bytes = _MAGIC) -> tuple[int, FileSnapshot]:
        self._check_listed(path)
        resolved = resolve_links(path)
        folder = self._containing_folder(resolved.end, path)
        trusted = {0, os.geteuid()}
        try:
            trusted.add(folder.stat().st_uid)
            found = resolved.found
            if found is None:
                raise WeightsNotFoundError.at(path, _missing_detail(resolved))
            for step in resolved.steps:
                # The way to a listed folder is its owner's to trust; below it only who owns it, and root, count.
                below = step.folder == folder or folder in step.folder.parents
                if weakness := step.weakness(trusted if below else None):
                    raise WeightsNotFoundError.at(path, weakness)
            return _open_regular(path, resolved.end, found, magic)
        except OSError as exc:
            raise WeightsNotFoundError.at(path, describe_read_error(exc)) from exc

    def _check_listed(self, path: Path) -> None:
        normalized = Path(os.path.normpath(path))
        if not any(folder in normalized.parents for listed in self.folders for folder in _spellings(listed)):
            raise SourceNotAllowedError.of_path(path)

    def _containing_folder(self, end: Path, path: Path) -> Path:
        """Return the innermost listed folder that holds the end of a way."""
        containing = [folder for listed in self.folders if (folder := resolve_links(listed).end) in end.parents]
        store = None if self.store is None else resolve_links(self.store).end
        if not containing or (store in end.parents and store not in containing):
            raise SourceNotAllowedError.of_path(path)
        return max(containing, key=lambda folder: len(folder.parts))


def _spellings(listed: Path) -> tuple[Path, Path]:
    """Return a listed folder as its owner wrote it, and where it leads."""
    return Path(os.path.normpath(listed)), resolve_links(listed).end


def _parts_of(path: Path) -> tuple[str, ...]:
    try:
        return part_names(path.name)
    except WeightsError:
        return (path.name,)  # numbers that make no sense; the engine takes it as one file


def _missing_detail(resolved: ResolvedPath) -> str:
    return "there is nothing" if resolved.error is None else describe_read_error(resolved.error)


def _open_regular(path: Path, end: Path, found: os.stat_result, magic: bytes) -> tuple[int, FileSnapshot]:
    """Open what was found, unless it is no file of weights: opening a device or a pipe may already do something."""
    if stat.S_ISDIR(found.st_mode):
        raise WeightsNotFoundError.at(path, "it is a folder; name the .gguf file in it")
    if not stat.S_ISREG(found.st_mode):
        raise WeightsNotFoundError.at(path, "it is not a regular file")
    descriptor = os.open(end, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    keep_open = False
    try:
        current = os.fstat(descriptor)
        if (current.st_dev, current.st_ino) != (found.st_dev, found.st_ino):
            raise WeightsNotFoundError.at(path, "it was replaced while it was looked at")
        if os.pread(descriptor, len(magic), 0) != magic:
            raise WeightsNotFoundError.at(path, "it is not a GGUF file" if current.st_size else "it is empty")
        keep_open = True
        return descriptor, FileSnapshot.at(end, current)
    finally:
        if not keep_open:
            os.close(descriptor)

"""The local files that an object may use: GGUF files below the folders that the host's owner has listed.

* The author of a Model learns nothing about other files. A path that is not textually below a listed folder is refused
  before the disk is accessed; one whose links lead outside is refused with the same message, whether or not the file
  exists. Below a listed folder, a file without weights is reported as missing; only the host's own log has the cause.
* The checked file is the file that is used: it is opened only if no user other than those whom the host's owner trusts
  could replace it (`base.trusted_paths`), and only bytes of that file are read.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from llmkube.base.private_files import write_private
from llmkube.base.trusted_paths import resolve_links
from llmkube.weights.errors import SourceNotAllowedError, WeightsError, WeightsNotFoundError
from llmkube.weights.split_names import part_names
from llmkube.weights.store.local_files import FileSnapshot, describe_read_error

RECORDED_FOLDERS: Final = "local-sources.json"
"""File in a state directory with folders that its owner has allowed by deploying a file in them."""

_MAGIC: Final = b"GGUF"
_FOLDER_SUFFIXES: Final = (".safetensors", ".json", ".jinja", ".model", ".tiktoken", ".txt")
_MAX_FILES: Final = 1024


@attrs.frozen
class FolderSnapshot:
    """A folder with snapshots of the files that an engine may read, by name."""

    path: Path
    files: tuple[FileSnapshot, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def identity(self) -> str:
        """Changes with the name, the size or the modification time of any file."""
        entries = [f"{file.path.name}:{file.size_bytes}:{file.mtime_ns}" for file in self.files]
        return f"{self.path}:{hashlib.sha256(chr(0).join(entries).encode('utf-8', 'surrogateescape')).hexdigest()}"


@attrs.frozen
class LocalSources:
    """The folders that the host's owner has listed; without any, no local file may be used.

    Attributes:
        folders: The absolute paths of the folders.
        store: The store of fetched weights, whose files have their own audiences: no file in it may be used by its
            path, unless the store itself is listed.
        recorded: File with more folders, which commands of the host's owner write; read at each check.
    """

    folders: tuple[Path, ...] = ()
    store: Path | None = None
    recorded: Path | None = None

    def admit(self, path: Path) -> FileSnapshot:
        """Return a snapshot of the file at a path, after checking it; of a split model, all parts are checked.

        Raises:
            SourceNotAllowedError: It is, or leads, outside the listed folders.
            WeightsNotFoundError: There is no such file, or it is not weights.
        """
        names = _parts_of(path)
        found = {name: self._snapshot(path.with_name(name)) for name in names}
        if len(names) == 1:
            return found[path.name]
        # An engine finds the parts by their names, which exist only in the folder of the links to them.
        named = resolve_links(path.parent).end / path.name
        self._containing_folder(named, path)
        return attrs.evolve(found[path.name], path=named)

    def admit_folder(self, path: Path, *, opaque: bool = False) -> FolderSnapshot:
        """Return a snapshot of the folder of safetensors at a path, after checking each of its files.

        Args:
            path: Its path.
            opaque: Whether it is a file or a folder of any content instead.

        Raises:
            SourceNotAllowedError: It is, or leads, outside the listed folders.
            WeightsNotFoundError: There is no such folder, or one of its files is not usable.
        """
        self._check_listed(path / "config.json")
        end = resolve_links(path).end
        self._containing_folder(end / "config.json", path)
        names = _names_below(end, path) if opaque else _safetensors_in(end, path)
        return FolderSnapshot(end, tuple(self._snapshot(path / name, magic=b"") for name in names))

    def open(self, path: Path) -> int:
        """Return a descriptor of a file that `admit` accepts, after checking it again; the caller closes it.

        Raises:
            SourceNotAllowedError: As in `admit`.
            WeightsNotFoundError: As in `admit`.
        """
        return self._open(path)[0]

    def admits(self, path: Path, *, folder: bool = False, opaque: bool = False) -> bool:
        """Return whether `admit`, or `admit_folder`, accepts a path."""
        try:
            _ = self.admit_folder(path, opaque=opaque) if folder else self.admit(path)
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
                error = resolved.error
                raise WeightsNotFoundError.at(path, describe_read_error(error) if error else "there is no file")
            for step in resolved.steps:
                # The operator trusts the path to a listed folder; below it, only the folder's owner and root are.
                below = step.folder == folder or folder in step.folder.parents
                if weakness := step.weakness(trusted if below else None):
                    raise WeightsNotFoundError.at(path, weakness)
            return _open_regular(path, resolved.end, found, magic)
        except OSError as exc:
            raise WeightsNotFoundError.at(path, describe_read_error(exc)) from exc

    def _listed(self) -> tuple[Path, ...]:
        return self.folders if self.recorded is None else (*self.folders, *recorded_folders(self.recorded))

    def _check_listed(self, path: Path) -> None:
        normalized = Path(os.path.normpath(path))
        spellings = (each for one in self._listed() for each in (Path(os.path.normpath(one)), resolve_links(one).end))
        if not any(folder in normalized.parents for folder in spellings):
            raise SourceNotAllowedError.of_path(path)

    def _containing_folder(self, end: Path, path: Path) -> Path:
        """Return the innermost listed folder that contains a resolved path."""
        containing = [folder for listed in self._listed() if (folder := resolve_links(listed).end) in end.parents]
        store = None if self.store is None else resolve_links(self.store).end
        if not containing or (store in end.parents and store not in containing):
            raise SourceNotAllowedError.of_path(path)
        return max(containing, key=lambda folder: len(folder.parts))


def recorded_folders(file: Path) -> tuple[Path, ...]:
    """Return the folders that `record_folders` has recorded; none if the file does not exist or is damaged."""
    try:
        return tuple(map(Path, json.loads(file.read_bytes())))
    except (OSError, ValueError, TypeError):
        return ()


def record_folders(file: Path, folders: Iterable[Path]) -> None:
    """Allow local sources below more folders. The file is in a state directory, to which only its owner may write."""
    write_private(file, json.dumps(sorted({*map(str, recorded_folders(file)), *map(str, folders)})))


def _parts_of(path: Path) -> tuple[str, ...]:
    try:
        return part_names(path.name)
    except WeightsError:
        return (path.name,)  # invalid numbers; the engine loads it as one file


def _safetensors_in(folder: Path, shown: Path) -> list[str]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(_FOLDER_SUFFIXES))
    except OSError as exc:
        raise WeightsNotFoundError.at(shown, describe_read_error(exc)) from exc
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise WeightsNotFoundError.at(shown, "it has no config.json or no .safetensors file")
    if len(names) > _MAX_FILES:
        raise WeightsNotFoundError.at(shown, f"it has more than {_MAX_FILES} files")
    return names


def _names_below(folder: Path, shown: Path) -> list[str]:
    """Return the relative names of all files below a folder, without one for any that a link would lead to."""
    names: list[str] = [] if folder.is_dir() else ["."]
    for root, folders, files in os.walk(folder):
        names += [os.path.relpath(Path(root, name), folder) for name in files]
        if any(Path(root, name).is_symlink() for name in folders):
            raise WeightsNotFoundError.at(shown, "it contains a link to a folder")
        if len(names) > _MAX_FILES:
            raise WeightsNotFoundError.at(shown, f"it has more than {_MAX_FILES} files")
    if not names:
        raise WeightsNotFoundError.at(shown, "it has no files")
    return sorted(names)


def _open_regular(path: Path, end: Path, found: os.stat_result, magic: bytes) -> tuple[int, FileSnapshot]:
    """Open the file if it is regular and has the magic bytes: opening a device or a pipe may have side effects."""
    if stat.S_ISDIR(found.st_mode):
        raise WeightsNotFoundError.at(path, "it is a folder; use the .gguf file in it")
    if not stat.S_ISREG(found.st_mode):
        raise WeightsNotFoundError.at(path, "it is not a regular file")
    descriptor = os.open(end, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    keep_open = False
    try:
        current = os.fstat(descriptor)
        if (current.st_dev, current.st_ino) != (found.st_dev, found.st_ino):
            raise WeightsNotFoundError.at(path, "it was replaced while it was checked")
        if os.pread(descriptor, len(magic), 0) != magic:
            raise WeightsNotFoundError.at(path, "it is not a GGUF file" if current.st_size else "it is empty")
        keep_open = True
        return descriptor, FileSnapshot.at(end, current)
    finally:
        if not keep_open:
            os.close(descriptor)

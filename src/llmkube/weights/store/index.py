"""The index: the blobs of each source and who may use them, so that fetched models start offline.

A record has the size and modification time of its blobs; a blob that differs only in its time is verified before use.
All functions block on the disk.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base.private_files import replaced_folder, write_private
from llmkube.weights.errors import FetchError
from llmkube.weights.http_responses import RemoteVersion, Validator
from llmkube.weights.source import Builtin, Remote, WebFile
from llmkube.weights.store.blobs import DIGEST, Store, WeightsFile, sync_folder
from llmkube.weights.store.partial import Partial


@attrs.frozen
class Audience:
    """The users that may use a record's weights without another request to the source.

    Attributes:
        public: All Models: the source served a request without a credential.
        namespaces: Models in these namespaces, whose credentials were accepted.
        credentials: Keyed digests of the accepted credentials (`Store.keyed_digest`).
    """

    public: bool = False
    namespaces: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()

    def admits(self, namespace: str | None) -> bool:
        """Return whether a Model in this namespace may use the weights; None is the owner of the store."""
        return self.public or namespace is None or namespace in self.namespaces

    def shares_with(self, credential: str) -> bool:
        """Return whether a request with this credential, or none if empty, may use the weights for another source."""
        return self.public or (bool(credential) and credential in self.credentials)

    def extended(self, namespace: str | None, credential: str) -> "Audience":
        """Return the audience after the source has served a request with this credential, or none if empty."""
        if not credential:
            return attrs.evolve(self, public=True)
        added = () if namespace is None else (namespace,)
        return attrs.evolve(
            self,
            namespaces=tuple(dict.fromkeys((*self.namespaces, *added))),
            credentials=tuple(dict.fromkeys((*self.credentials, credential))),
        )


PUBLIC = Audience(public=True)
"""The audience of weights that require no credential."""

OWNER = Audience()
"""The audience of weights that only the store's owner may use until a credential is accepted."""


_MAX_RECORD_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"[\w][\w.-]{0,254}", re.ASCII)


@attrs.frozen
class BlobInfo:
    """One blob, as of when it was written or last verified."""

    sha256: str
    size_bytes: int
    mtime_ns: int


@attrs.frozen
class Record:
    """The fetched files of one source.

    Attributes:
        source: The source for people, without secrets.
        pieces: The file, or the parts of a split model in order.
        fetched_at: The time of the fetch, in RFC 3339.
        server: The server, if the source does not determine it (`BucketAccess.server`).
        audience: The users that may use the weights without another request to the source.
        versions: The server's version of each piece; empty if unknown.
        choice: The chosen quantization, for people; empty if there was no choice.
        names: The names of the pieces in the folder for an engine; empty if it loads a file.
        projector: The model's projector in the repository from which it was chosen; empty if there is none.
    """

    source: str
    pieces: tuple[BlobInfo, ...] = ()
    fetched_at: str = ""
    server: str = ""
    versions: tuple[Validator, ...] = ()
    audience: Audience = OWNER
    choice: str = ""
    names: tuple[str, ...] = ()
    projector: str = ""

    @property
    def size_bytes(self) -> int:
        """The size of all pieces together."""
        return sum(piece.size_bytes for piece in self.pieces)


@attrs.frozen
class UnverifiedRecord:
    """A record whose blobs are present; the `touched` ones were modified and must be verified before use."""

    record: Record
    touched: tuple[BlobInfo, ...]


def key_of(identity: str) -> str:
    """Return the key of a source's record: 64 hex digits that reveal nothing of the text."""
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def name_of(store: Store, source: Remote | Builtin) -> str:
    """Return the name of a source in the store: its identity, and a keyed digest of its password, if any."""
    secret = source.secret if isinstance(source, WebFile) else ""
    return f"{source.identity}#{store.keyed_digest(secret)}" if secret else source.identity


def find_weights(store: Store, identity: str, server: str | None = None) -> WeightsFile | UnverifiedRecord | None:
    """Return the stored weights of a source, or None; with `server`, only those from that server."""
    record = read_record(store, key_of(identity))
    if record is None or server not in (None, record.server):
        return None
    return find_recorded(store, record)


def find_recorded(store: Store, record: Record) -> WeightsFile | UnverifiedRecord | None:
    """Return the stored weights of a record, or None if a part is gone."""
    states = [(piece, _state(store, piece)) for piece in record.pieces]
    if any(state == "gone" for _, state in states):
        return None
    touched = tuple(piece for piece, state in states if state == "touched")
    return UnverifiedRecord(record, touched) if touched else weights_of(store, record)


def find_blob(store: Store, sha256: str, admits: Callable[[Audience], bool] = lambda _: True) -> BlobInfo | None:
    """Return an unmodified blob with a digest that a record refers to, or None.

    Args:
        store: The store.
        sha256: The digest; knowing it is no proof of access.
        admits: Returns whether a record with this audience may be used.
    """
    for _, record in records(store):
        for piece in record.pieces:
            if piece.sha256 == sha256 and admits(record.audience) and _state(store, piece) == "good":
                return piece
    return None


def extend_audience(store: Store, name: str, seen: Record, namespace: str | None, credential: str) -> None:
    """Record that the source served a request with this credential; if it is empty, the weights are public.

    A record that another fetch has replaced since it was `seen` is not changed.

    Raises:
        FetchError: The disk fails.
    """
    with store.locked():
        record = read_record(store, key_of(name))
        if record is None or [p.sha256 for p in record.pieces] != [p.sha256 for p in seen.pieces]:
            return
        audience = record.audience.extended(namespace, credential)
        if audience != record.audience:
            save_record(store, key_of(name), attrs.evolve(record, audience=audience))


def commit_record(store: Store, identity: str, record: Record, parts: Sequence[Partial | BlobInfo]) -> WeightsFile:
    """Commit complete parts, all or none, and save their record.

    Args:
        store: The store.
        identity: The name of the source in the store.
        record: The record; its pieces are replaced by the parts.
        parts: The parts in order.

    Raises:
        FetchError: The disk fails, or a blob was removed meanwhile; the next fetch downloads it again.
    """
    with store.locked():
        if any(isinstance(part, BlobInfo) and _state(store, part) == "gone" for part in parts):
            # it was found before the other parts were downloaded, which may have taken hours
            raise FetchError("a part of the model was removed from the model store meanwhile")
        pieces = tuple(part if isinstance(part, BlobInfo) else blob_info(part.commit()) for part in parts)
        record = attrs.evolve(record, pieces=pieces)
        found = weights_of(store, record)
        save_record(store, key_of(identity), record)
        return found


def blob_info(blob: Path) -> BlobInfo:
    """Return the info of a blob whose content is known to match its name."""
    found = blob.lstat()
    return BlobInfo(blob.name, found.st_size, found.st_mtime_ns)


def record_verified(store: Store, identity: str, record: Record) -> WeightsFile:
    """Update a record to the current state of its blobs, which have just been verified."""
    current = [blob_info(store.blobs / piece.sha256) for piece in record.pieces]
    return commit_record(store, identity, record, current)


def weights_of(store: Store, record: Record) -> WeightsFile:
    """Return the file or folder for an engine: the blob, the first part of a set, or the folder of all files."""
    first = record.pieces[0]
    if len(record.pieces) == 1 and not record.names:
        blob, identity = store.blobs / first.sha256, f"sha256:{first.sha256}"
        return WeightsFile(blob, first.size_bytes, first.sha256, identity, record.choice, record.projector)
    name = file_set_name(record)
    folder = store.sets / name
    names = record.names or numbered_part_names(len(record.pieces))
    if not all(_is_linked(folder / n, store.blobs / p.sha256) for n, p in zip(names, record.pieces, strict=True)):
        _link_set(store, folder, dict(zip(names, (piece.sha256 for piece in record.pieces), strict=True)))
    path = folder if record.names else folder / names[0]
    return WeightsFile(path, record.size_bytes, None, f"sha256-set:{name}", record.choice, record.projector)


def file_set_name(record: Record) -> str:
    """Return the name of the folder for a set of files: the hash of their digests and names."""
    digests = "\n".join((*(piece.sha256 for piece in record.pieces), *record.names))
    return hashlib.sha256(digests.encode("ascii")).hexdigest()


def numbered_part_names(count: int) -> list[str]:
    """Return the names by which llama.cpp finds the parts of a split model from the first (`llama_split_path`)."""
    return [f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def records(store: Store) -> Iterator[tuple[str, Record]]:
    """Yield all records with their keys."""
    for path in sorted(store.index.glob("*.json")):
        record = read_record(store, path.stem) if DIGEST.fullmatch(path.stem) else None
        if record is not None:
            yield path.stem, record


def read_record(store: Store, key: str) -> Record | None:
    """Return the record with a key; None if it is missing or invalid."""
    try:
        fd = os.open(store.index / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return _record(json.loads(file.read(_MAX_RECORD_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def save_record(store: Store, key: str, record: Record) -> None:
    """Write a record, replacing the one with the same key."""
    pieces = [{"sha256": p.sha256, "sizeBytes": p.size_bytes, "mtimeNs": p.mtime_ns} for p in record.pieces]
    are_known = any(version != Validator() for version in record.versions)
    optional: dict[str, Any] = {
        "server": record.server,
        "versions": [[version.etag, version.last_modified] for version in record.versions] if are_known else [],
        "choice": record.choice,
        "names": record.names,
        "projector": record.projector,
    }
    data: dict[str, Any] = {"source": record.source, "pieces": pieces, "fetchedAt": record.fetched_at}
    data |= {"audience": attrs.asdict(record.audience), **{name: value for name, value in optional.items() if value}}
    write_private(store.index / f"{key}.json", json.dumps(data))
    sync_folder(store.index)


def is_current(record: Record, seen: Sequence[RemoteVersion]) -> bool:
    """Return whether every file on the server is still the fetched version.

    If the server has a digest, it decides, since a content network has its own ETag for the same bytes. Otherwise the
    size must match, and then the ETag or else the modification time; a file without any of them is taken as unchanged.
    """
    if len(record.pieces) != len(seen):
        return False
    versions = record.versions or (Validator(),) * len(seen)
    for piece, version, current in zip(record.pieces, versions, seen, strict=True):
        if current.sha256 is not None:
            same = current.sha256 == piece.sha256
        elif current.size_bytes not in (None, piece.size_bytes):
            same = False
        elif version.etag and current.validator.etag:
            same = version.etag == current.validator.etag
        else:
            same = version.agrees(current.validator)
        if not same:
            return False
    return True


def _record(data: Any) -> Record:
    pieces = tuple(BlobInfo(str(p["sha256"]), int(p["sizeBytes"]), int(p["mtimeNs"])) for p in data["pieces"])
    if not pieces or not all(DIGEST.fullmatch(piece.sha256) for piece in pieces):
        raise ValueError("no digests")
    versions = tuple(Validator(str(etag), str(moment)) for etag, moment in data.get("versions") or ())
    server, audience = str(data.get("server") or ""), _audience(data.get("audience") or {})
    choice = str(data.get("choice") or "")
    names = tuple(map(str, data.get("names") or ()))
    if names and (len(names) != len(pieces) or not all(map(_NAME.fullmatch, names))):
        raise ValueError("invalid file names")
    fetched_at, projector = str(data["fetchedAt"]), str(data.get("projector") or "")
    return Record(str(data["source"]), pieces, fetched_at, server, versions, audience, choice, names, projector)


def _audience(data: Any) -> Audience:
    """Parse the audience of a record; a record of an older version without one is only for the store's owner."""
    texts = {name: tuple(str(text) for text in data.get(name) or ()) for name in ("namespaces", "credentials")}
    return Audience(public=data.get("public") is True, **texts)


def _state(store: Store, piece: BlobInfo) -> str:
    try:
        found = (store.blobs / piece.sha256).lstat()
    except OSError:
        return "gone"
    if not stat.S_ISREG(found.st_mode) or found.st_size != piece.size_bytes:
        return "gone"
    return "good" if found.st_mtime_ns == piece.mtime_ns else "touched"


def _is_linked(name: Path, blob: Path) -> bool:
    try:
        link, file = name.lstat(), blob.lstat()
    except OSError:
        return False
    return stat.S_ISREG(link.st_mode) and (link.st_dev, link.st_ino) == (file.st_dev, file.st_ino)


def _link_set(store: Store, folder: Path, digests: dict[str, str]) -> None:
    """Create a folder of hard links to the blobs; it appears when it is complete."""
    with store.write_errors():
        with replaced_folder(folder) as staging:
            for name, digest in digests.items():
                os.link(store.blobs / digest, staging / name, follow_symlinks=False)
            sync_folder(staging)
        sync_folder(store.sets)

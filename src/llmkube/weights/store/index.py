"""The index: which blobs a source led to and who may have them, so that what was fetched once starts, offline too.

A record vouches for its blobs by size and time of change; a blob that differs in time only is read again before it is
believed. Everything here blocks on the disk.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from llmkube.base.private_files import write_private
from llmkube.weights.errors import FetchError
from llmkube.weights.http_responses import RemoteVersion, Validator
from llmkube.weights.source import Builtin, Remote, WebFile
from llmkube.weights.store.blobs import DIGEST, Store, WeightsFile, sync_folder, write_error
from llmkube.weights.store.partial import Partial


@attrs.frozen
class Audience:
    """Who may have the weights of one record without another question to their source.

    Attributes:
        public: Every Model: the source gave them to a request without a credential.
        namespaces: Models of these: a credential of theirs has worked.
        credentials: Keyed digests of the credentials that have worked (`Store.keyed_digest`).
    """

    public: bool = False
    namespaces: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()

    def admits(self, namespace: str | None) -> bool:
        """Whether a Model of this namespace may have them; None is the owner of the store."""
        return self.public or namespace is None or namespace in self.namespaces

    def shares_with(self, credential: str) -> bool:
        """Whether who presents this credential may have them under another source's name; empty is none."""
        return self.public or (bool(credential) and credential in self.credentials)

    def extended(self, namespace: str | None, credential: str) -> "Audience":
        """Return the audience after the source has given them to a request with this credential; empty is none."""
        if not credential:
            return attrs.evolve(self, public=True)
        added = () if namespace is None else (namespace,)
        return attrs.evolve(
            self,
            namespaces=tuple(dict.fromkeys((*self.namespaces, *added))),
            credentials=tuple(dict.fromkeys((*self.credentials, credential))),
        )


PUBLIC = Audience(public=True)
"""What took no credential."""

OWNER = Audience()
"""What only the store's owner may have until a credential has worked."""


_MAX_RECORD_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"[\w][\w.-]{0,254}", re.ASCII)


@attrs.frozen
class BlobInfo:
    """One blob, as it was when it was written or last verified."""

    sha256: str
    size_bytes: int
    mtime_ns: int


@attrs.frozen
class Record:
    """What one source led to.

    Attributes:
        source: The source for people, without secrets.
        pieces: The file, or the parts of a split model in order.
        fetched_at: When, in RFC 3339.
        server: Whose it was, where the source leaves that open (`BucketAccess.server`).
        audience: Who may have it without another question to the source.
        versions: What the server called the version of each piece; empty when it did not say.
        choice: Which of several quantizations it is, for people; empty where there was nothing to choose.
        names: What the pieces are called in the folder that an engine is given; empty where that is a file.
    """

    source: str
    pieces: tuple[BlobInfo, ...] = ()
    fetched_at: str = ""
    server: str = ""
    versions: tuple[Validator, ...] = ()
    audience: Audience = OWNER
    choice: str = ""
    names: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all pieces together."""
        return sum(piece.size_bytes for piece in self.pieces)


@attrs.frozen
class UnverifiedRecord:
    """The record's blobs are there, but these have been touched: verify them before use."""

    record: Record
    touched: tuple[BlobInfo, ...]


def key_of(identity: str) -> str:
    """Return the name under which the store keeps what it knows of a source: 64 hex digits, nothing of the text."""
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()


def name_of(store: Store, source: Remote | Builtin) -> str:
    """Return what the store knows a source by: its identity, and a keyed digest of the password in it."""
    secret = source.secret if isinstance(source, WebFile) else ""
    return f"{source.identity}#{store.keyed_digest(secret)}" if secret else source.identity


def find_weights(store: Store, identity: str, server: str | None = None) -> WeightsFile | UnverifiedRecord | None:
    """Return what the store has for a source, or None; from this very server, if one is named."""
    record = read_record(store, key_of(identity))
    if record is None or server not in (None, record.server):
        return None
    return find_recorded(store, record)


def find_recorded(store: Store, record: Record) -> WeightsFile | UnverifiedRecord | None:
    """Return what the store has of a record, or None when a part of it is gone."""
    states = [(piece, _state(store, piece)) for piece in record.pieces]
    if any(state == "gone" for _, state in states):
        return None
    touched = tuple(piece for piece, state in states if state == "touched")
    return UnverifiedRecord(record, touched) if touched else weights_of(store, record)


def find_blob(store: Store, sha256: str, admits: Callable[[Audience], bool] = lambda _: True) -> BlobInfo | None:
    """Return an untouched blob of that digest that some record vouches for, or None.

    Args:
        store: The store.
        sha256: The digest: to know it does not prove that one may have the blob.
        admits: Whether a record with this audience counts.
    """
    for _, record in records(store):
        for piece in record.pieces:
            if piece.sha256 == sha256 and admits(record.audience) and _state(store, piece) == "good":
                return piece
    return None


def extend_audience(store: Store, name: str, seen: Record, namespace: str | None, credential: str) -> None:
    """Note that the source of a record gives its weights to who presents this credential, or to all if it is empty.

    A record that another fetch has replaced since it was `seen` stays as it is.

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
    """Make complete parts visible, all of them or none, and remember what they are.

    Args:
        store: The store.
        identity: What it knows the source by.
        record: What else is known of the source; its pieces become the parts.
        parts: In order.

    Raises:
        FetchError: The disk fails, or a blob that was there has been removed; the next fetch brings it again.
    """
    with store.locked():
        if any(isinstance(part, BlobInfo) and _state(store, part) == "gone" for part in parts):
            # found before the other parts were downloaded, which may have taken hours
            raise FetchError("a part of the model has been removed from the model store meanwhile")
        pieces = tuple(part if isinstance(part, BlobInfo) else blob_info(part.commit()) for part in parts)
        record = attrs.evolve(record, pieces=pieces)
        found = weights_of(store, record)
        save_record(store, key_of(identity), record)
        return found


def blob_info(blob: Path) -> BlobInfo:
    """Look at a blob whose content is known to fit its name."""
    found = blob.lstat()
    return BlobInfo(blob.name, found.st_size, found.st_mtime_ns)


def record_verified(store: Store, identity: str, record: Record) -> WeightsFile:
    """Take the blobs of a record as they are now: they have just been read, and their digests are right."""
    current = [blob_info(store.blobs / piece.sha256) for piece in record.pieces]
    return commit_record(store, identity, record, current)


def weights_of(store: Store, record: Record) -> WeightsFile:
    """Return what an engine is given: the blob, the first part among its fellows, or the folder of all files."""
    first = record.pieces[0]
    if len(record.pieces) == 1 and not record.names:
        blob, identity = store.blobs / first.sha256, f"sha256:{first.sha256}"
        return WeightsFile(blob, first.size_bytes, first.sha256, identity, record.choice)
    name = set_name(record)
    folder = store.sets / name
    names = record.names or set_names(len(record.pieces))
    if not all(_is_linked(folder / n, store.blobs / p.sha256) for n, p in zip(names, record.pieces, strict=True)):
        _link_set(store, folder, dict(zip(names, (piece.sha256 for piece in record.pieces), strict=True)))
    path = folder if record.names else folder / names[0]
    return WeightsFile(path, record.size_bytes, None, f"sha256-set:{name}", record.choice)


def set_name(record: Record) -> str:
    """Return the name of the folder in which several files lie: the hash of their digests and given names."""
    digests = "\n".join((*(piece.sha256 for piece in record.pieces), *record.names))
    return hashlib.sha256(digests.encode("ascii")).hexdigest()


def set_names(count: int) -> list[str]:
    """Return the names by which llama.cpp finds the parts of a split model from the first (`llama_split_path`)."""
    return [f"model-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def records(store: Store) -> Iterator[tuple[str, Record]]:
    """Go through all records, each with its key."""
    for path in sorted(store.index.glob("*.json")):
        record = read_record(store, path.stem) if DIGEST.fullmatch(path.stem) else None
        if record is not None:
            yield path.stem, record


def read_record(store: Store, key: str) -> Record | None:
    """Return the record with a key; None if there is none that makes sense."""
    try:
        fd = os.open(store.index / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return _record(json.loads(file.read(_MAX_RECORD_BYTES)))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def save_record(store: Store, key: str, record: Record) -> None:
    """Write a record in place of the one with its key."""
    pieces = [{"sha256": p.sha256, "sizeBytes": p.size_bytes, "mtimeNs": p.mtime_ns} for p in record.pieces]
    data: dict[str, Any] = {"source": record.source, "pieces": pieces, "fetchedAt": record.fetched_at}
    data["audience"] = attrs.asdict(record.audience)
    if record.server:
        data["server"] = record.server
    if any(version != Validator() for version in record.versions):
        data["versions"] = [[version.etag, version.last_modified] for version in record.versions]
    if record.choice:
        data["choice"] = record.choice
    if record.names:
        data["names"] = list(record.names)
    text = json.dumps(data)
    write_private(store.index / f"{key}.json", text)
    sync_folder(store.index)


def is_current(record: Record, seen: Sequence[RemoteVersion]) -> bool:
    """Whether every file is as it was fetched.

    A digest decides where a server gives one: a content network has an ETag of its own for the same bytes. Else the
    ETag does, else the time of change, else the size; a file of which nothing can be compared has not changed.
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
        raise ValueError("no names of files")
    fetched_at = str(data["fetchedAt"])
    return Record(str(data["source"]), pieces, fetched_at, server, versions, audience, choice=choice, names=names)


def _audience(data: Any) -> Audience:
    """Read who may have a record; of one from before this was written, only the store's owner."""
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
    """Put hard links to the blobs side by side; the folder appears when it is complete."""
    staging = Path(tempfile.mkdtemp(dir=store.sets, prefix=".new-"))  # 0700
    try:
        for name, digest in digests.items():
            os.link(store.blobs / digest, staging / name, follow_symlinks=False)
        sync_folder(staging)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(staging.with_name(f"{staging.name}-old"))  # a rename over a folder with something in it fails
        staging.rename(folder)
        sync_folder(store.sets)
    except OSError as exc:
        raise write_error(store, exc) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(staging.with_name(f"{staging.name}-old"), ignore_errors=True)

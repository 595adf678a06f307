"""The way from a remote source to a complete file in the store: recall it, or plan, download, verify and keep it."""

import datetime
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial as bind
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import attrs
import trio

from llmkube.base.errors import WorldError
from llmkube.base.http.hub import open_sockets
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import hugging_face
from llmkube.weights.download.buckets import BucketAccess, Signer
from llmkube.weights.download.freshness import RemoteVersion, is_current
from llmkube.weights.download.guarded_transport import OpenTransport, open_transport_with
from llmkube.weights.download.progress import OnProgress, Progress, Rate
from llmkube.weights.download.redirects import Credential, FileRequest, FileResponse, as_fetch_errors, open_response
from llmkube.weights.download.retry import Dependencies, DownloadLimits, OriginPauses, retry
from llmkube.weights.download.single_flight import SingleFlight, open_single_flight
from llmkube.weights.download.transfer import RejectedVersion, Transfer, TransferObserver, TransferRequest
from llmkube.weights.errors import DigestMismatchError, FetchError, SourceError, StalledError
from llmkube.weights.http_responses import RangeRequest, Validator, linked_digest, range_total, refusal
from llmkube.weights.source import BucketFile, HubFile, HubRepository, Remote, WebFile
from llmkube.weights.store.audience import Audience
from llmkube.weights.store.blobs import Store, WeightsFile
from llmkube.weights.store.disk import FreeSpace, RunSync, free_bytes, in_threads
from llmkube.weights.store.index import (
    BlobInfo,
    Record,
    Unverified,
    commit_record,
    extend_audience,
    find_blob,
    find_recorded,
    key_of,
    name_of,
    read_record,
    record_verified,
)
from llmkube.weights.store.local_files import hash_file, take_snapshot
from llmkube.weights.store.partial import Partial, open_partial, remove_partial
from llmkube.weights.urls import WebUrl

T = TypeVar("T")

GetToken = Callable[[], Awaitable[str | None]]
"""Find the token for the hub, or None; asked only when the hub is about to be."""

GetAccess = Callable[[], Awaitable[BucketAccess]]
"""Find the keys and the server for an object in a bucket; WorldError when they cannot be read now."""

_LIMITS: Final = DownloadLimits()

STALE_SECONDS: Final = 7 * 86400.0
"""Incomplete downloads without a write for so long are removed."""

_PROOF_SECONDS: Final = 15.0  # for a source that may be out of reach, where its answer is not needed
_CLOSE_SECONDS: Final = 30.0  # putting down an incomplete file syncs it, which takes a slow disk a while
_LISTING_BYTES: Final = 32 << 20


@attrs.frozen
class _Job:
    """What one caller asks for; callers with equal jobs share a download, and present the same credential.

    Attributes:
        source: What to fetch.
        sha256: The digest that it must have.
        token: For the hub.
        policy: What it may lead to.
        access: For a bucket.
        credential: The keyed digest of all that goes along to prove who asks; empty for nothing.
        owner: Whether the store's owner asks, who may have all that is in it.
    """

    source: Remote
    sha256: str | None
    token: str | None = attrs.field(repr=False)
    policy: AddressPolicy
    access: BucketAccess = BucketAccess()
    credential: str = ""
    owner: bool = True

    def admits(self, audience: Audience) -> bool:
        """Whether a blob of such a record may be taken for this job, because it has the digest."""
        return self.owner or audience.shares_with(self.credential)

    def partial_key(self, name: str) -> str:
        """Return the key of an incomplete file: bytes that took a credential are continued with that one alone."""
        return key_of(f"{name} {self.credential}" if self.credential else name)


class Downloader:
    """Fetch remote sources into a store; `open_downloader` makes one."""

    def __init__(
        self, store: Store, dependencies: Dependencies, shared: SingleFlight[WeightsFile], endpoint: WebUrl
    ) -> None:
        self._store = store
        self._dependencies = dependencies
        self._shared = shared
        self._endpoint = endpoint
        self._refused: dict[tuple[str, str], RejectedVersion] = {}

    def active(self) -> dict[str, Progress]:
        """How far each download has come, by its source (without secrets), for metrics."""
        running = self._shared.active()
        return {job.source.redacted: progress for job, progress in running.items() if isinstance(job, _Job)}

    async def fetch(
        self,
        source: Remote,
        *,
        sha256: str | None,
        token: GetToken | None = None,
        access: GetAccess | None = None,
        policy: AddressPolicy,
        progress: OnProgress,
        namespace: str | None = None,
        fresh: bool = False,
    ) -> WeightsFile:
        """Return the file behind a source, complete and of the right digest; from the store if it is there.

        Nothing is asked of any server for what the store has: a source that was fetched once starts offline. But what
        took a credential is given to another namespace only when the source gives it to that one too.

        Args:
            source: What to fetch.
            sha256: The digest that it must have, in hex; None to trust the hub's, or the server.
            token: For the hub alone; not looked for if the store has the file, or it is not the hub's.
            access: For an object in a bucket; without it the bucket has to be public. Looked for in any case, because
                it says on which server the bucket is; when that is not known, what the store has is taken.
            policy: What the source may lead to.
            progress: Called in this task, with the newest state; some may be left out.
            namespace: Of the Model that asks; None for the owner of the store.
            fresh: Ask the server, although the store has the file, whether it is still that one; if not, fetch it.

        Raises:
            WeightsError: The source, the digest or the file is wrong, or access is denied; see `weights.errors`.
            FetchError: The disk or the network got in the way. What has come is kept for the next call.
        """
        wanted = sha256.lower() if sha256 is not None else None
        who: BucketAccess | WorldError = BucketAccess()
        if isinstance(source, BucketFile) and access is not None:
            try:
                who = await access()
            except WorldError as error:
                who = error
        server = who.server if isinstance(who, BucketAccess) else None
        run_sync = self._dependencies.run_sync
        name = await run_sync(bind(name_of, self._store, source))
        record = await run_sync(bind(read_record, self._store, key_of(name)))
        if record is not None and server not in (None, record.server):
            record = None  # another server's
        found = None if record is None else await self._recall(name, record, wanted, progress)
        if found is not None and record is not None and not fresh and record.audience.admits(namespace):
            return found
        if not isinstance(who, BucketAccess):
            raise who
        secret = await token() if token is not None and self._is_at_hub(source) else None
        proof = _proof(source, secret, who)
        credential = await run_sync(bind(self._store.keyed_digest, proof)) if proof else ""
        job = _Job(source, wanted, secret, policy, who, credential, namespace is None)
        if found is not None and record is not None and not fresh:
            await self._prove(job, record.audience, progress)
            await run_sync(bind(extend_audience, self._store, name, record, namespace, credential))
            return found
        if found is None or not await self._is_current(job, progress):
            found = await self._shared.join(job, bind(self._download, job), progress)
        record = await run_sync(bind(read_record, self._store, key_of(name)))
        if record is not None and credential in record.audience.credentials:
            await run_sync(bind(extend_audience, self._store, name, record, namespace, credential))
        return found

    async def _prove(self, job: _Job, audience: Audience, progress: OnProgress) -> None:
        """Ask the source whether it gives its weights to who asks with this credential, or without one.

        A credential that has worked before is believed where the source cannot be reached.

        Raises:
            WeightsError: It does not.
            FetchError: It does not say.
        """
        known = bool(job.credential) and job.credential in audience.credentials
        meter = _Meter(progress)
        try:
            with trio.move_on_after(_PROOF_SECONDS if known else math.inf):
                first = (await self._plan(job, meter))[0]
                await self._look(first, meter)
        except FetchError:
            if not known:
                raise

    def _is_at_hub(self, source: Remote) -> bool:
        if isinstance(source, WebFile):
            return source.url.origin == self._endpoint.origin
        return not isinstance(source, BucketFile)

    async def _is_current(self, job: _Job, progress: OnProgress) -> bool:
        """Ask the servers whether what the store has is still what they have."""
        meter = _Meter(progress)
        seen = [await self._look(one, meter) for one in await self._plan(job, meter)]
        run_sync = self._dependencies.run_sync
        name = await run_sync(bind(name_of, self._store, job.source))
        record = await run_sync(bind(read_record, self._store, key_of(name)))
        return record is not None and is_current(record, seen)

    async def _recall(self, name: str, record: Record, sha256: str | None, progress: OnProgress) -> WeightsFile | None:
        run_sync, store = self._dependencies.run_sync, self._store
        found = await run_sync(bind(find_recorded, store, record))
        if isinstance(found, Unverified):
            for piece in found.touched:
                if not await self._still_right(store.blobs / piece.sha256, progress):
                    return None
            found = await run_sync(bind(record_verified, store, name, found.record))
        return found if found is not None and sha256 in (None, found.sha256) else None

    async def _still_right(self, blob: Path, progress: OnProgress) -> bool:
        """Read a blob that something has touched; one that has rotted is removed."""
        run_sync = self._dependencies.run_sync
        seen = await run_sync(bind(take_snapshot, blob))

        def verifying(done: int) -> None:
            progress(Progress("verifying", done, seen.size_bytes))

        if await hash_file(seen, verifying, run_sync) == blob.name:
            return True
        await run_sync(bind(blob.unlink, missing_ok=True))
        return False

    async def _download(self, job: _Job, progress: OnProgress) -> WeightsFile:
        source = job.source
        meter = _Meter(progress)
        wanted = await self._plan(job, meter)
        async with AsyncExitStack() as stack:
            parts = [await self._part(job, one, meter, stack) for one in wanted]
            sizes = [one.size_bytes for one in wanted]
            known = [size for size in sizes if size is not None]
            meter.total_bytes = sum(known) if len(known) == len(sizes) else 0
            for index, (one, part) in enumerate(zip(wanted, parts, strict=True)):
                if isinstance(part, Partial):
                    later = [_missing_bytes(w, p) for w, p in zip(wanted[index + 1 :], parts[index + 1 :], strict=True)]
                    await self._transfer(one, part, sum(later), meter)
                meter.finished_bytes += part.size_bytes
            now = self._dependencies.utcnow().isoformat()
            versions = tuple(part.info.validator if isinstance(part, Partial) else Validator() for part in parts)
            run_sync = self._dependencies.run_sync
            name = await run_sync(bind(name_of, self._store, source))
            public = not job.credential and all([await self._is_public(part) for part in parts])
            audience = Audience(public=public, credentials=(job.credential,) if job.credential else ())
            kept = bind(commit_record, self._store, name, source.redacted, parts, now)
            return await run_sync(bind(kept, server=job.access.server, versions=versions, audience=audience))

    async def _is_public(self, part: Partial | BlobInfo) -> bool:
        """Whether a part has come now, or was in the store for every Model."""
        if isinstance(part, Partial):
            return True
        found = bind(find_blob, self._store, part.sha256, lambda audience: audience.public)
        return await self._dependencies.run_sync(found) is not None

    async def _transfer(self, wanted: TransferRequest, part: Partial, later_bytes: int, meter: "_Meter") -> None:
        observer = TransferObserver(meter.downloading, meter.verifying, meter.waiting)
        space = self._dependencies.space
        try:
            if wanted.size_bytes is not None:
                # Before the first byte of a split model: all that is missing must fit.
                space.reserve(part, _missing_bytes(wanted, part) + later_bytes)
            await Transfer(self._dependencies, wanted, part, observer, self._refused, later_bytes).run()
        finally:
            space.release(part)

    async def _part(
        self, job: _Job, wanted: TransferRequest, meter: "_Meter", stack: AsyncExitStack
    ) -> Partial | BlobInfo:
        """Return the blob if the store has it, else the partial file, locked for us."""
        run_sync, store = self._dependencies.run_sync, self._store
        while True:
            if wanted.sha256 is not None:
                piece = await run_sync(bind(find_blob, store, wanted.sha256, job.admits))
                if piece is not None:
                    return piece
            partial = await run_sync(bind(open_partial, store, wanted.key))
            if partial is not None:
                stack.push_async_callback(_close, run_sync, partial)
                return partial
            meter.waiting(0.0, "another download of the same file is under way")
            await trio.sleep(self._dependencies.limits.busy_seconds)

    async def _plan(self, job: _Job, meter: "_Meter") -> Sequence[TransferRequest]:
        """Say which files to download from where; what can be known to be wrong is raised here."""
        source = job.source
        meter.resolving()
        if isinstance(source, WebFile):
            return await self._plan_web(job, source, meter)
        if isinstance(source, BucketFile):
            return await self._plan_bucket(job, source, meter)
        if isinstance(source, HubFile) and len(source.parts) == 1:
            return [self._wanted_hub(job, source, hugging_face.HubEntry(source.path))]
        name = source.repository if isinstance(source, HubFile) else source.name
        listing = await self._listing(job, name, source.revision, meter)
        file = hugging_face.choose(source, listing) if isinstance(source, HubRepository) else source
        entries = hugging_face.entries_of(file, listing)
        _refuse_one_digest_for_many(job, len(entries))
        # Pinned to one commit: the parts of a model that is just being replaced must not be mixed.
        pinned = attrs.evolve(file, revision=listing.commit or file.revision)
        return [self._wanted_hub(job, attrs.evolve(pinned, path=entry.path), entry) for entry in entries]

    def _wanted_hub(self, job: _Job, file: HubFile, entry: hugging_face.HubEntry) -> TransferRequest:
        if job.sha256 is not None and entry.sha256 not in (None, job.sha256):
            raise DigestMismatchError(
                f"the hub says that {file.redacted} has the digest {entry.sha256}, spec.sha256 asks for {job.sha256}; "
                "correct the digest, or the source"
            )
        return TransferRequest(
            shown=file.redacted,
            url=hugging_face.file_url(self._endpoint, file),
            key=job.partial_key(file.identity),
            policy=job.policy,
            credential=self._credential(job),
            sha256=job.sha256 or entry.sha256,
            promised_by="spec.sha256" if job.sha256 else "",
            size_bytes=entry.size_bytes,
            hub=True,
        )

    async def _plan_web(self, job: _Job, source: WebFile, meter: "_Meter") -> Sequence[TransferRequest]:
        urls = source.parts
        _refuse_one_digest_for_many(job, len(urls))
        at_hub = self._is_at_hub(source)
        credential = Credential.basic(source.url, source.user_info) if source.user_info is not None else None
        first = TransferRequest(
            shown=source.url.shown,
            url=source.url,
            key=job.partial_key(str(source.url)),
            policy=job.policy,
            credential=credential or (self._credential(job) if at_hub else None),
            sha256=job.sha256,
            promised_by="spec.sha256" if job.sha256 else "",
            hub=at_hub,
        )
        return await self._probed(
            [attrs.evolve(first, shown=url.shown, url=url, key=job.partial_key(str(url))) for url in urls], meter
        )

    async def _plan_bucket(self, job: _Job, source: BucketFile, meter: "_Meter") -> Sequence[TransferRequest]:
        if not source.path or source.path.endswith("/"):
            raise SourceError(f"{source.redacted} is a folder of a bucket; say in spec.files which file of it to fetch")
        _refuse_one_digest_for_many(job, len(source.parts))
        each, who = [], job.access
        for path in source.parts:
            url, part = who.url(source.bucket, path), attrs.evolve(source, path=path)
            signer = Signer(url.origin, who, self._dependencies.utcnow) if who.key_id else None
            each.append(
                TransferRequest(
                    shown=part.redacted,
                    url=url,
                    key=job.partial_key(f"{who.server} {part.identity}"),
                    policy=job.policy,
                    credential=signer,
                    sha256=job.sha256,
                    promised_by="spec.sha256" if job.sha256 else "",
                    bucket=True,
                )
            )
        return await self._probed(each, meter)

    async def _probed(self, each: Sequence[TransferRequest], meter: "_Meter") -> Sequence[TransferRequest]:
        if len(each) == 1:
            return each
        # A part that is missing, or a disk that is too small, is better known before the first 40 GB than after them.
        seen = [await self._look(one, meter) for one in each]
        return [attrs.evolve(w, size_bytes=s.size_bytes, sha256=s.sha256) for w, s in zip(each, seen, strict=True)]

    def _credential(self, job: _Job) -> Credential | None:
        return Credential.bearer(self._endpoint, job.token) if job.token else None

    async def _listing(self, job: _Job, name: str, revision: str, meter: "_Meter") -> hugging_face.Listing:
        request = FileRequest(
            hugging_face.listing_url(self._endpoint, name, revision), job.policy, self._credential(job)
        )
        shown = job.source.redacted

        async def read(response: FileResponse) -> hugging_face.Listing:
            if response.status != 200:
                self._refuse(RangeRequest(shown=shown, hub=True), request, response)
            body = bytearray()
            with as_fetch_errors(request.url):
                while chunk := await response.body.receive_some():
                    body += chunk
                    if len(body) > _LISTING_BYTES:
                        raise FetchError(f"{shown}: the hub's list of files is too long")
            return hugging_face.parse_listing(shown, bytes(body))

        return await self._ask(request, shown, read, meter)

    async def _look(self, wanted: TransferRequest, meter: "_Meter") -> RemoteVersion:
        """Ask for the first bytes only, to learn whether the file is there, how long it is and which version."""
        request = FileRequest(wanted.url, wanted.policy, wanted.credential, {"Range": "bytes=0-3"})

        async def read(response: FileResponse) -> RemoteVersion:  # noqa: ASYNC124 (the head says it all)
            if response.status not in (200, 206):
                asked = RangeRequest(shown=wanted.shown, hub=wanted.hub, bucket=wanted.bucket)
                self._refuse(asked, request, response)
            length = response.headers.get("content-length", "")
            if response.status == 206:
                size = range_total(response.headers)
            else:
                size = int(length) if length.isascii() and length.isdigit() else None
            size = response.linked_size if size is None else size
            digest = response.linked_sha256 or linked_digest(response.headers)
            return RemoteVersion(size, digest, Validator.of(response.headers))

        return await self._ask(request, wanted.shown, read, meter)

    async def _ask(
        self, request: FileRequest, shown: str, read: Callable[[FileResponse], Awaitable[T]], meter: "_Meter"
    ) -> T:
        async def attempt() -> T:
            with trio.move_on_after(self._dependencies.limits.head_seconds):
                async with (
                    self._dependencies.open_transport(request.policy) as transport,
                    open_response(transport, request) as response,
                ):
                    return await read(response)
            raise StalledError(f"{shown}: no answer in {self._dependencies.limits.head_seconds:g} s")

        return await retry(attempt, origin=request.url.origin, dependencies=self._dependencies, waiting=meter.waiting)

    def _refuse(self, asked: RangeRequest, request: FileRequest, response: FileResponse) -> NoReturn:
        asked = attrs.evolve(asked, credential=request.credential is not None)
        now = self._dependencies.utcnow()
        raise refusal(asked, response.status, response.headers, redirected=response.redirected, now=now)


@attrs.define(eq=False)
class _Meter:
    """Turn what the transfers of one job say into the job's progress."""

    progress: OnProgress
    total_bytes: int = 0
    finished_bytes: int = 0
    _rate: Rate = attrs.field(factory=Rate)

    def resolving(self) -> None:
        self.progress(Progress("resolving"))

    def downloading(self, size_bytes: int, part_total_bytes: int | None) -> None:
        done = self.finished_bytes + size_bytes
        total = self.total_bytes or (part_total_bytes or 0)
        self._rate.add(trio.current_time(), done)
        self.progress(Progress("downloading", done, total, self._rate.bytes_per_second, self._rate.seconds_left(total)))

    def verifying(self, done_bytes: int, total_bytes: int) -> None:
        self.progress(Progress("verifying", done_bytes, total_bytes))

    def waiting(self, seconds: float, note: str) -> None:
        self._rate.reset()
        self.progress(Progress("waiting", seconds_left=seconds or None, note=note))


@asynccontextmanager
async def open_downloader(
    store: Store,
    *,
    limiter: trio.CapacityLimiter,
    utcnow: Callable[[], datetime.datetime],
    rng: random.Random,
    endpoint: str = hugging_face.ENDPOINT,
    limits: DownloadLimits = _LIMITS,
    open_transport: OpenTransport | None = None,
    run_sync: RunSync | None = None,
    free: Callable[[Path], int] = free_bytes,
) -> AsyncGenerator[Downloader, None]:
    """Open a downloader for one store; leaving it cancels the downloads, and what has come of them is kept.

    Args:
        store: Where to keep files.
        limiter: Bounds the worker threads that touch the disk.
        utcnow: The wall clock, for dates in answers and in the index.
        rng: Spreads retries.
        endpoint: The hub's address, or a mirror's.
        limits: How long is long enough.
        open_transport: What carries requests; None for real sockets, with every address checked.
        run_sync: What runs blocking work; None for worker threads under the limiter.
        free: Returns the free bytes of a folder's file system.
    """
    run_sync = in_threads(limiter) if run_sync is None else run_sync
    await run_sync(bind(_remove_stale, store, utcnow().timestamp() - STALE_SECONDS))
    async with AsyncExitStack() as stack:
        if open_transport is None:
            sockets = await stack.enter_async_context(open_sockets())
            open_transport = open_transport_with(dial=sockets.connect)
        space = FreeSpace(store.root, free)
        dependencies = Dependencies(open_transport, run_sync, utcnow, rng, limits, space, OriginPauses())
        shared = await stack.enter_async_context(open_single_flight(WeightsFile))
        yield Downloader(store, dependencies, shared, hugging_face.parse_endpoint(endpoint))


def _remove_stale(store: Store, before: float) -> None:
    for path in store.partial.iterdir():
        if not path.name.endswith(".json"):
            remove_partial(path, unless_younger_than=before)


async def _close(run_sync: RunSync, partial: Partial) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
        await run_sync(partial.close)


def _proof(source: Remote, token: str | None, access: BucketAccess) -> str:
    """Return all that goes along to prove who asks, as one text; empty for nothing.

    The query of a URL may be a signature, and counts as one.
    """
    words = []
    if isinstance(source, WebFile):
        words += [source.secret, source.url.target.partition("?")[2]]
    if not (isinstance(source, WebFile) and source.secret):
        words.append(token or "")
    if isinstance(source, BucketFile) and access.key_id:
        words += [access.server, access.key_id, access.secret, access.session_token]
    return "\0\0".join(words) if any(words) else ""


def _missing_bytes(wanted: TransferRequest, part: Partial | BlobInfo) -> int:
    if isinstance(part, BlobInfo) or wanted.size_bytes is None:
        return 0
    return max(wanted.size_bytes - part.size_bytes - part.unhashed_bytes, 0)


def _refuse_one_digest_for_many(job: _Job, parts: int) -> None:
    if parts > 1 and job.sha256 is not None:
        raise DigestMismatchError(
            f"one digest cannot describe the {parts} parts of {job.source.redacted}; leave spec.sha256 out "
            "(parts from Hugging Face are verified against its own digests)"
        )

"""Fetch a remote source into the store: use the stored file, or download and verify it."""

import datetime
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Generic, ParamSpec, TypeVar

import attrs
import trio

from llmkube.base.errors import ExternalError
from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.base.http.hub import open_sockets
from llmkube.base.mailbox import Mailbox
from llmkube.weights.address_policy import AddressPolicy
from llmkube.weights.download import hugging_face
from llmkube.weights.download.buckets import BucketAccess
from llmkube.weights.download.guarded_transport import OpenTransport, open_transport_with
from llmkube.weights.download.progress import Meter, OnProgress, Progress
from llmkube.weights.download.registry import RegistryAccess
from llmkube.weights.download.resolver import DownloadJob, Resolver, is_at_hub
from llmkube.weights.download.retry import Dependencies, DownloadLimits
from llmkube.weights.download.transfer import RejectedVersion, Transfer, TransferRequest
from llmkube.weights.errors import FetchError
from llmkube.weights.http_responses import Validator
from llmkube.weights.source import BucketFile, ImageSource, Remote, WebFile
from llmkube.weights.store import index
from llmkube.weights.store.blobs import Store, WeightsFile
from llmkube.weights.store.disk import FreeSpace, RunSync, free_bytes, in_threads
from llmkube.weights.store.local_files import hash_file, take_snapshot
from llmkube.weights.store.partial import Partial, open_partial, remove_partial
from llmkube.weights.urls import WebUrl

T = TypeVar("T")
Work = Callable[[OnProgress], Awaitable[T]]

LINGER_SECONDS: Final = 2.0
"""The time for which work continues without a waiter: some servers cannot resume, and would send everything again."""


@attrs.frozen
class _Result(Generic[T]):
    value: T


@attrs.define(eq=False)
class _Call(Generic[T]):
    """One piece of work: its latest state and the number of waiters."""

    key: Hashable
    work: Work[T]
    scope: trio.CancelScope
    state: Mailbox[Progress | _Result[T] | Exception]
    waiters: int = 0


class SingleFlight(Generic[T]):
    """Shared work by key, at most one at a time per key; `open_single_flight` creates it.

    A task that stops waiting does not cancel it for the others, nor for itself if it soon waits again: every edit of a
    service interrupts its planner, which then requests the same file.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._running: dict[Hashable, _Call[T]] = {}

    def active(self) -> dict[Hashable, Progress]:
        """Return the progress of each piece of work."""
        values = {key: call.state.value for key, call in self._running.items()}
        return {key: value for key, value in values.items() if isinstance(value, Progress)}

    async def join(self, key: Hashable, work: Work[T], progress: OnProgress) -> T:
        """Return the result of the work under a key, or raise its exception; start it if it is not running.

        It is cancelled a moment after its last waiter. `progress` is called in this task.
        """
        call = self._running.get(key)
        if call is None or call.scope.cancel_called:
            call = self._running[key] = _Call(key, work, trio.CancelScope(), Mailbox(Progress("resolving")))
            self._nursery.start_soon(self._run, call)
        call.waiters += 1
        call.scope.deadline = math.inf
        version = -1
        try:
            while True:
                state = await call.state.wait_newer(version)
                version = call.state.version
                if isinstance(state, _Result):
                    return state.value
                if isinstance(state, Exception):
                    raise state
                progress(state)
        finally:
            call.waiters -= 1
            if call.waiters == 0:
                call.scope.deadline = trio.current_time() + LINGER_SECONDS

    async def _run(self, call: _Call[T]) -> None:
        with call.scope:
            try:
                state: _Result[T] | Exception = _Result(await call.work(call.state.put_nowait))
            except Exception as error:  # noqa: BLE001 - not swallowed: every waiter raises it, in its own task
                state = error
            self._forget(call)
            call.state.put_nowait(state)
        self._forget(call)

    def _forget(self, call: _Call[T]) -> None:
        """Let the next call for the same key start the work again."""
        if self._running.get(call.key) is call:
            del self._running[call.key]


@asynccontextmanager
async def open_single_flight(result: type[T]) -> AsyncGenerator[SingleFlight[T], None]:
    """Yield a `SingleFlight` with results of one type; on exit, running work is cancelled."""
    async with trio.open_nursery() as nursery:
        yield SingleFlight(nursery)
        nursery.cancel_scope.cancel(reason="the owner is done")


GetToken = Callable[[], Awaitable[str | None]]
"""Returns the token for the hub, or None; called only before a request to the hub."""

GetAccess = Callable[[], Awaitable[BucketAccess]]
"""Returns the keys and the server for an object in a bucket; ExternalError if they cannot be read."""

GetRegistry = Callable[[], Awaitable[RegistryAccess]]
"""Returns the credentials for a registry."""

P = ParamSpec("P")

_LIMITS: Final = DownloadLimits()

STALE_SECONDS: Final = 7 * 86400.0
"""The time without a write after which an incomplete download is removed."""

_PROOF_SECONDS: Final = 15.0  # for a source that may be unreachable, if its response is not required
_CLOSE_SECONDS: Final = 30.0  # closing an incomplete file syncs it, which may take long on a slow disk


@attrs.define(eq=False)
class Downloader:
    """A downloader of remote sources into a store; `open_downloader` creates it."""

    _store: Store
    _dependencies: Dependencies
    _shared: SingleFlight[WeightsFile]
    _endpoint: WebUrl
    _memory_bytes: int | None
    _rejected: dict[tuple[str, str], RejectedVersion] = attrs.field(factory=dict)

    def active(self) -> dict[str, Progress]:
        """Return the progress of each download by its source (without secrets), for metrics."""
        running = self._shared.active()
        return {job.source.redacted: progress for job, progress in running.items() if isinstance(job, DownloadJob)}

    async def fetch(
        self,
        source: Remote,
        *,
        sha256: str | None,
        token: GetToken | None = None,
        access: GetAccess | None = None,
        registry: GetRegistry | None = None,
        policy: AddressPolicy,
        progress: OnProgress,
        namespace: str | None = None,
        fresh: bool = False,
    ) -> WeightsFile:
        """Return the file of a source, complete and with the right digest; from the store if it is there.

        For a stored file no server is contacted, so a source that was fetched once starts offline. But a file that
        required a credential is given to another namespace only if the source grants that one access, too.

        Args:
            source: The source to fetch.
            sha256: The digest that the file must have, in hex; None to trust the hub's, or the server.
            token: Only for the hub; not called if the store has the file, or the source is not at the hub.
            access: For an object in a bucket; without it, the bucket must be public. Always called, because the server
                of the bucket is part of it; if it fails, the stored file is used.
            registry: For a source in a registry; without it, that must be public. Not called if the store has the file.
            policy: The addresses that the source may resolve to.
            progress: Called in this task with the latest state; some may be skipped.
            namespace: Namespace of the Model; None for the owner of the store.
            fresh: Check with the server whether the stored file is still current, and fetch it if it is not.

        Raises:
            WeightsError: The source, the digest or the file is wrong, or access is denied; see `weights.errors`.
            FetchError: The disk or the network failed. The received bytes are kept for the next call.
        """
        expected = sha256.lower() if sha256 is not None else None
        bucket_access: BucketAccess | ExternalError = BucketAccess()
        if isinstance(source, BucketFile) and access is not None:
            try:
                bucket_access = await access()
            except ExternalError as error:
                bucket_access = error
        server = bucket_access.server if isinstance(bucket_access, BucketAccess) else None
        name, record = await self._find_record(source)
        if record is not None and server not in (None, record.server):
            record = None  # another server's
        found = None if record is None else await self._find_stored(name, record, expected, progress)
        if found is not None and record is not None and not fresh and record.audience.admits(namespace):
            return found
        if not isinstance(bucket_access, BucketAccess):
            raise bucket_access
        secret = await token() if token is not None and is_at_hub(source, self._endpoint) else None
        login = await registry() if registry is not None and isinstance(source, ImageSource) else RegistryAccess()
        proof = _proof(source, secret, bucket_access, login)
        credential = await self._run_sync(self._store.keyed_digest, proof) if proof else ""
        job = DownloadJob(source, expected, secret, policy, bucket_access, credential, namespace is None, login)
        if found is not None and record is not None and not fresh:
            await self._check_access(job, record.audience, progress)
            await self._run_sync(index.extend_audience, self._store, name, record, namespace, credential)
            return found
        if found is None or not await self._is_current(job, progress):
            found = await self._shared.join(job, partial(self._download, job), progress)
        _, record = await self._find_record(source)
        if record is not None and credential in record.audience.credentials:
            await self._run_sync(index.extend_audience, self._store, name, record, namespace, credential)
        return found

    async def _check_access(self, job: DownloadJob, audience: index.Audience, progress: OnProgress) -> None:
        """Check that the source grants access with the job's credential, or without one.

        If the source is unreachable, a credential that was accepted before is sufficient.

        Raises:
            WeightsError: Access is denied.
            FetchError: The source could not be reached.
        """
        known = bool(job.credential) and job.credential in audience.credentials
        resolver = self._resolver(job, progress)
        try:
            with trio.move_on_after(_PROOF_SECONDS if known else math.inf):
                await resolver.probe((await resolver.resolve())[0])
        except FetchError:
            if not known:
                raise

    def _resolver(self, job: DownloadJob, progress: OnProgress) -> Resolver:
        meter = Meter(progress, self._dependencies.utcnow)
        return Resolver(self._dependencies, self._endpoint, job, meter, self._memory_bytes)

    async def _is_current(self, job: DownloadJob, progress: OnProgress) -> bool:
        """Return whether the stored files are still those on the servers."""
        resolver = self._resolver(job, progress)
        seen = [await resolver.probe(one) for one in await resolver.resolve()]
        _, record = await self._find_record(job.source)
        return record is not None and index.is_current(record, seen)

    async def _find_stored(
        self, name: str, record: index.Record, sha256: str | None, progress: OnProgress
    ) -> WeightsFile | None:
        store = self._store
        found = await self._run_sync(index.find_recorded, store, record)
        if isinstance(found, index.UnverifiedRecord):
            for piece in found.touched:
                if not await self._is_intact(store.blobs / piece.sha256, progress):
                    return None
            found = await self._run_sync(index.record_verified, store, name, found.record)
        return found if found is not None and sha256 in (None, found.sha256) else None

    async def _is_intact(self, blob: Path, progress: OnProgress) -> bool:
        """Verify a blob that was modified; a corrupt one is removed."""
        seen = await self._run_sync(take_snapshot, blob)

        def verifying(done: int) -> None:
            progress(Progress("verifying", done, seen.size_bytes))

        if await hash_file(seen, verifying, self._dependencies.run_sync) == blob.name:
            return True
        await self._run_sync(blob.unlink, missing_ok=True)
        return False

    async def _download(self, job: DownloadJob, progress: OnProgress) -> WeightsFile:
        source, resolver = job.source, self._resolver(job, progress)
        requests, meter = await resolver.resolve(), resolver.meter
        async with AsyncExitStack() as stack:
            parts = [await self._part(job, one, meter, stack) for one in requests]
            sizes = [one.size_bytes for one in requests]
            known = [size for size in sizes if size is not None]
            meter.total_bytes = sum(known) if len(known) == len(sizes) else 0
            for number, (one, part) in enumerate(zip(requests, parts, strict=True)):
                if isinstance(part, Partial):
                    later = [
                        _missing_bytes(w, p) for w, p in zip(requests[number + 1 :], parts[number + 1 :], strict=True)
                    ]
                    await self._transfer(one, part, sum(later), meter)
                meter.finished_bytes += part.size_bytes
            now = self._dependencies.utcnow().isoformat()
            versions = tuple(part.info.validator if isinstance(part, Partial) else Validator() for part in parts)
            name = await self._run_sync(index.name_of, self._store, source)
            public = not job.credential and all([await self._is_public(part) for part in parts])
            audience = index.Audience(public=public, credentials=(job.credential,) if job.credential else ())
            record = index.Record(
                source.redacted,
                fetched_at=now,
                server=job.access.server,
                versions=versions,
                audience=audience,
                choice=meter.chosen,
                projector=meter.projector,
                names=tuple(one.name for one in requests if one.name),
            )
            return await self._run_sync(index.commit_record, self._store, name, record, parts)

    async def _is_public(self, part: Partial | index.BlobInfo) -> bool:
        """Return whether a part was downloaded now, or is public in the store."""
        if isinstance(part, Partial):
            return True
        found = await self._run_sync(index.find_blob, self._store, part.sha256, lambda audience: audience.public)
        return found is not None

    async def _transfer(self, request: TransferRequest, part: Partial, later_bytes: int, meter: Meter) -> None:
        space = self._dependencies.space
        try:
            if request.size_bytes is not None:
                # Before the first byte of a split model, all missing bytes must fit.
                space.reserve(part, _missing_bytes(request, part) + later_bytes)
            await Transfer(self._dependencies, request, part, meter, self._rejected, later_bytes).run()
        finally:
            space.release(part)

    async def _part(
        self, job: DownloadJob, request: TransferRequest, meter: Meter, stack: AsyncExitStack
    ) -> Partial | index.BlobInfo:
        """Return the blob if the store has it, else the partial file, locked by us."""
        while True:
            if request.sha256 is not None:
                piece = await self._run_sync(index.find_blob, self._store, request.sha256, job.admits)
                if piece is not None:
                    return piece
            part = await self._run_sync(open_partial, self._store, request.key)
            if part is not None:
                stack.push_async_callback(_close, self._dependencies.run_sync, part)
                return part
            meter.waiting(0.0, "another download of the same file is under way")
            await trio.sleep(self._dependencies.limits.busy_poll_seconds)

    async def _find_record(self, source: Remote) -> tuple[str, index.Record | None]:
        """Return the name of a source in the store, and its record."""
        name = await self._run_sync(index.name_of, self._store, source)
        return name, await self._run_sync(index.read_record, self._store, index.key_of(name))

    async def _run_sync(self, fn: Callable[P, T], *args: P.args, **others: P.kwargs) -> T:
        return await self._dependencies.run_sync(partial(fn, *args, **others))


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
    egress: Egress = DIRECTLY,
    run_sync: RunSync | None = None,
    free: Callable[[Path], int] = free_bytes,
    memory_bytes: int | None = None,
) -> AsyncGenerator[Downloader, None]:
    """Yield a downloader for one store; on exit, downloads are cancelled and their bytes kept.

    Args:
        store: The store.
        limiter: Bounds the worker threads for the disk.
        utcnow: The wall clock, for dates in responses and in the index.
        rng: Jitter for retries.
        endpoint: The address of the hub or of a mirror.
        limits: The time and size limits.
        open_transport: Opens the transport of requests; None for real sockets, with every address checked.
        egress: Proxies and additional certificates of real sockets.
        run_sync: Runs blocking work; None for worker threads under the limiter.
        free: Returns the free bytes of a folder's file system.
        memory_bytes: This host's memory budget for models, to choose among quantizations; None if unknown.
    """
    run_sync = in_threads(limiter) if run_sync is None else run_sync
    await run_sync(partial(_remove_stale, store, utcnow().timestamp() - STALE_SECONDS))
    async with AsyncExitStack() as stack:
        if open_transport is None:
            sockets = await stack.enter_async_context(open_sockets())
            open_transport = open_transport_with(dial=sockets.connect, egress=egress)
        space = FreeSpace(store.root, free)
        dependencies = Dependencies(open_transport, utcnow, rng, limits, run_sync=run_sync, space=space)
        shared = await stack.enter_async_context(open_single_flight(WeightsFile))
        yield Downloader(store, dependencies, shared, hugging_face.parse_endpoint(endpoint), memory_bytes)


def _remove_stale(store: Store, before: float) -> None:
    for path in store.partial.iterdir():
        if not path.name.endswith(".json"):
            remove_partial(path, unless_modified_since=before)


async def _close(run_sync: RunSync, part: Partial) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
        await run_sync(part.close)


def _proof(source: Remote, token: str | None, access: BucketAccess, login: RegistryAccess) -> str:
    """Return all credentials that are sent, as one text; empty without any.

    The query of a URL is included, since it may be a signature.
    """
    words = []
    if isinstance(source, WebFile):
        words += [source.secret, source.url.target.partition("?")[2]]
    if not (isinstance(source, WebFile) and source.secret):
        words.append(token or "")
    if isinstance(source, BucketFile) and access.key_id:
        words += [access.server, access.key_id, access.secret, access.session_token]
    if isinstance(source, ImageSource) and login.user:
        words += [source.registry, login.user, login.password]
    return "\0\0".join(words) if any(words) else ""


def _missing_bytes(request: TransferRequest, part: Partial | index.BlobInfo) -> int:
    if isinstance(part, index.BlobInfo) or request.size_bytes is None:
        return 0
    return max(request.size_bytes - part.size_bytes - part.unhashed_bytes, 0)

"""Download one file from one URL: resumed, verified while it streams, and never mixed from two versions."""

from functools import partial as bind
from typing import Final

import attrs
import trio

from llmkube.weights.download.body_pipe import BodyReceiver, DiskWriter, HeaderBound, RingBuffer
from llmkube.weights.download.progress import Meter, Progress
from llmkube.weights.download.redirects import FileRequest, FileResponse, open_response
from llmkube.weights.download.retry import Dependencies, retry
from llmkube.weights.errors import (
    DigestMismatchError,
    FetchError,
    NotGGUFError,
    RangeError,
    SourceRefusedError,
    StalledError,
    WrongSizeError,
)
from llmkube.weights.http_responses import AlreadyComplete, RangeRequest, ReadBody, Restart, Validator, interpret
from llmkube.weights.store.partial import Partial, PartialInfo

_STEP_BYTES: Final = 1 << 30  # space that is reserved at a time while the size of the file is unknown


@attrs.frozen
class TransferRequest(FileRequest):
    """A request for one file, with the facts that are known beforehand.

    Attributes:
        key: The key of its incomplete bytes in the store.
        sha256: The digest that it must have, in lower-case hex, if known.
        promised_by: The field of the digest: `spec.sha256`, or empty for the hub's.
        size_bytes: Its size, if known from the hub.
        name: Its name in the folder for an engine; "" if the engine loads a file.
        is_gguf: Whether that file must be a GGUF file.
    """

    key: str = attrs.field(kw_only=True)
    sha256: str | None = None
    promised_by: str = ""
    size_bytes: int | None = None
    name: str = ""
    is_gguf: bool = True


@attrs.frozen
class RejectedVersion:
    """A version of a file that had a wrong digest too often; it is not downloaded again."""

    validator: Validator
    error: DigestMismatchError


@attrs.define(eq=False)
class Transfer:
    """The download of one file into one partial file.

    Attributes:
        meter: Receives the progress.
        rejected: Versions that are not downloaded again, by key and digest; shared by all transfers.
        later_bytes: The bytes that the same job will write afterwards, which must fit onto the disk too.
    """

    dependencies: Dependencies
    request: TransferRequest
    partial: Partial
    meter: Meter
    rejected: dict[tuple[str, str], RejectedVersion]
    later_bytes: int = 0
    _expected: str | None = None
    _ranges: bool = True
    _best_bytes: int = 0

    async def run(self) -> None:
        """Return when the partial file is complete, verified and synced.

        Raises:
            UserError: A retry cannot succeed; see `weights.errors`.
            FetchError: A retry may succeed. The bytes are kept, and the next run resumes from them.
        """
        run_sync, limits = self.dependencies.run_sync, self.dependencies.limits
        total = self.partial.unhashed_bytes
        while self.partial.unhashed_bytes:
            await run_sync(self.partial.rehash)
            self.meter.progress(Progress("verifying", self.partial.size_bytes, total))
        self._best_bytes = self.partial.size_bytes
        self._expected = self.request.sha256
        # The user's digest may be a mistake, and a file that was downloaded as a whole would be the same again; the
        # prefix of a resumed one may be corrupt on this disk. The hub's digest is not a mistake.
        user_limit = 2 if self.partial.size_bytes else 1
        limit = user_limit if self.request.promised_by else limits.digest_tries
        for tries in range(1, limit + 1):
            await retry(
                self._attempt,
                origin=self.request.url.origin,
                network=self.dependencies,
                waiting=self.meter.waiting,
                has_progressed=self._has_progressed,
            )
            found = self.partial.sha256
            if self._expected in (None, found):
                break
            error = self._mismatch(found, tries, final=tries == limit)
            self.rejected[self.request.key, self._expected or ""] = RejectedVersion(self.partial.info.validator, error)
            await run_sync(bind(self.partial.begin, PartialInfo()))  # discard these bytes
            if tries == limit:
                raise error
            self._best_bytes = 0
            delay = limits.backoff.delay(tries, self.dependencies.rng)
            self.meter.waiting(delay, str(error), error.reason)
            await trio.sleep(delay)
            del self.rejected[self.request.key, self._expected or ""]
        await run_sync(self.partial.checkpoint)

    def _mismatch(self, found: str, tries: int, *, final: bool) -> DigestMismatchError:
        request = self.request
        promise, advice = "the hub's is", "try another revision, or notify its owner"
        if request.server == "registry":
            promise, advice = "its manifest's is", "push the artifact again, or notify its owner"
        if request.promised_by:
            promise, advice = "spec.sha256 is", "correct the digest, or the source"
        times = "once" if tries == 1 else f"{tries} times"
        return DigestMismatchError(
            f"{request.shown} has the digest {found}, but {promise} {self._expected} (downloaded {times}); {advice}",
            field=request.promised_by,
            final=final,
        )

    def _has_progressed(self) -> bool:
        gained = self.partial.size_bytes - self._best_bytes
        if gained < self.dependencies.limits.window_bytes:
            return False
        self._best_bytes = self.partial.size_bytes
        return True

    async def _attempt(self) -> None:
        partial = self.partial
        # An earlier process may have received all bytes but not the hub's digest, which is then requested again.
        is_verifiable = self._expected is not None or self.request.server != "hub"
        if partial.size_bytes and partial.size_bytes == partial.info.total_bytes and is_verifiable:
            await trio.lowlevel.checkpoint()
            return
        resume = self._ranges and partial.size_bytes > 0 and partial.info.validator.if_range
        headers = {"Range": f"bytes={partial.size_bytes}-", "If-Range": str(resume)} if resume else {}
        request = self.request
        ranged = request.ranged(
            partial.size_bytes if resume else 0,
            partial.info.validator,
            request.size_bytes if request.size_bytes is not None or not resume else partial.info.total_bytes,
        )
        limits = self.dependencies.limits
        with trio.move_on_after(limits.head_seconds) as scope:
            async with open_response(self.dependencies.open_transport(request.policy), request, headers) as response:
                await self._receive(response, ranged, scope)
        if scope.cancelled_caught:
            raise StalledError(
                f"{request.shown}: stalled at {partial.size_bytes} bytes: fewer than {limits.window_bytes} bytes "
                f"were received within {limits.window_seconds:g} s"
            )

    async def _receive(self, response: FileResponse, ranged: RangeRequest, scope: trio.CancelScope) -> None:
        run_sync, partial, request = self.dependencies.run_sync, self.partial, self.request
        scope.deadline = trio.current_time() + self.dependencies.limits.window_seconds  # the head has arrived
        now = self.dependencies.utcnow()
        if request.sha256 is None:
            self._expected = response.linked_sha256
        try:
            verdict = interpret(ranged, response.status, response.headers, redirected=response.redirected, now=now)
            if self._expected is None and isinstance(verdict, ReadBody) and verdict.offset:
                self._check_version(ranged, response)
        except RangeError:
            self._ranges = False  # no range support; the next attempt requests the whole file
            raise
        if isinstance(verdict, AlreadyComplete):
            partial.info = PartialInfo(partial.info.validator, partial.size_bytes)
            return
        if isinstance(verdict, Restart):
            await run_sync(bind(partial.begin, PartialInfo()))
            raise FetchError(f"{request.shown}: {verdict.reason}; starting from the beginning")
        total = self._check(verdict, response)
        info = PartialInfo(verdict.validator, total)
        if verdict.offset == 0:
            await run_sync(bind(partial.begin, info))
        else:
            partial.info = info
        self._reserve_space(total)
        await self._stream_body(response, total, scope)
        if total is None:
            partial.info = PartialInfo(verdict.validator, partial.size_bytes)
        elif partial.size_bytes < total:
            if verdict.offset == 0:
                await run_sync(bind(partial.begin, PartialInfo()))
                raise WrongSizeError(f"{request.shown}: the server sent fewer than the file's {total} bytes")
            raise FetchError(f"{request.shown}: the server sent only part of the requested range")

    def _check_version(self, ranged: RangeRequest, response: FileResponse) -> None:
        """Refuse a part without a digest to verify it, unless it has the strong ETag of the request.

        A server that supports If-Range sends the ETag (RFC 9110, 15.3.7); another one may send any version.
        """
        etag = ranged.validator.if_range
        if etag.startswith('"') and not Validator.of(response.headers).etag:
            raise RangeError(f"{ranged.shown}: the server sent a part of an unknown version (no ETag)")

    def _check(self, verdict: ReadBody, response: FileResponse) -> int | None:
        """Return the size of the file; raise problems that can be detected before the body is read."""
        request = self.request
        promised = response.linked_sha256
        if promised is not None and request.promised_by and promised != request.sha256:
            raise DigestMismatchError(
                f"{request.shown} has the digest {promised} at the hub, but spec.sha256 is {request.sha256}; "
                "correct the digest, or the source"
            )
        before = self.rejected.get((request.key, self._expected or ""))
        if before is not None:
            if before.validator == verdict.validator:
                raise before.error
            del self.rejected[request.key, self._expected or ""]
        total = self._total(verdict, response)
        if total == 0:
            raise NotGGUFError(f"{request.shown} is empty")
        return total

    def _total(self, verdict: ReadBody, response: FileResponse) -> int | None:
        request, limit = self.request, self.dependencies.limits.max_bytes
        total = verdict.total_bytes
        if response.linked_size is not None:
            if total not in (None, response.linked_size):
                raise WrongSizeError(
                    f"{request.shown} should have {response.linked_size} bytes, the server sends {total}"
                )
            total = response.linked_size
        if not verdict.framed and self._expected is None and total is None:
            raise SourceRefusedError(
                f"{request.shown}: the server does not state the size of the file, so a broken connection looks like "
                "its end; set spec.sha256, or use another server"
            )
        if total is not None and total > limit:
            raise WrongSizeError(f"{request.shown} has {total} bytes; more than {limit} are not supported")
        return total

    def _reserve_space(self, total: int | None) -> None:
        need = _STEP_BYTES if total is None else total - self.partial.size_bytes
        self.dependencies.space.reserve(self.partial, need + self.later_bytes)

    async def _stream_body(self, response: FileResponse, total: int | None, scope: trio.CancelScope) -> None:
        """Receive and write concurrently; errors of either side are raised as they are, not in a group."""
        ring, limits = RingBuffer(), self.dependencies.limits
        limit = limits.max_bytes if total is None else total
        start, is_gguf = self.partial.size_bytes, self.request.is_gguf and not self.request.name
        bound = HeaderBound(self.partial) if total is None and is_gguf else None
        receiver = BodyReceiver(
            self.request.url, self.request.shown, start, limit, limits, ring, is_gguf=is_gguf, bound=bound
        )
        writer = DiskWriter(self.dependencies, self.partial, ring, bind(self._on_written, total), bound)
        disk_failure: FetchError | None = None

        async def write() -> None:
            nonlocal disk_failure
            disk_failure = await writer.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            received = False
            try:
                failure = await receiver.run(response.body, scope)
                received = True
            finally:
                if not received:
                    ring.stop()
        if disk_failure is not None:
            raise disk_failure
        if isinstance(failure, WrongSizeError):
            # these bytes may be of another version
            await self.dependencies.run_sync(bind(self.partial.begin, PartialInfo()))
        if failure is not None:
            raise failure

    def _on_written(self, total: int | None, count: int) -> None:
        """Record newly written bytes."""
        self.dependencies.space.consume(self.partial, count)
        if total is None:
            self._reserve_space(None)
        self.meter.downloading(self.partial.size_bytes, total)

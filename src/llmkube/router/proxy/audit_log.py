"""Audit log: one line of JSON per request with the client, the decision and its reason, the attempts and the outcome.

Further lines record the config in use, at the start, at reloads and at the end of a router. When lines come faster than
they can be written, requests wait, for up to `PUT_SECONDS`. A thread writes many lines at a time. Prompts and answers
are not logged, except for request bodies if the config enables them. Everything else that a client chooses is cut, and
a file is rotated, so that no client fills the disk.
"""

import contextlib
import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs
import structlog
import trio

from llmkube import __version__
from llmkube.base import json_text
from llmkube.router.config.config_json import config_digest
from llmkube.router.config.routing_config import Audit, RoutingConfig
from llmkube.router.dispatch.record import Record

MAX_WAITING_LINES: Final = 4096
PUT_SECONDS: Final = 5.0
"""Time limit for a request that waits to enqueue its line."""

PAUSE_SECONDS: Final = 0.05
"""Pause between two writes, to batch lines: a call to a thread costs more than formatting a line."""

DRAIN_SECONDS: Final = 5.0
"""Time limit for writing the last lines when the router stops."""

MAX_FILE_BYTES: Final = 32 << 20
"""Size above which a file is rotated."""

OLD_FILES: Final = 7
"""Rotated files, `audit.log.1` being the newest; the oldest one is removed."""

MAX_FIELD_CHARS: Final = 512
MAX_ITEMS: Final = 32

Write = Callable[[Sequence[bytes]], Awaitable[None]]
"""Writes lines to the sink; raises OSError on failure."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger()


def writer_of(audit: Audit) -> Write:
    """Return the writer for the configured sink. It runs in a thread: a pipe without a reader blocks no request."""
    write_out = partial(_append, Path(audit.path)) if audit.sink == "file" else _to_stdout
    limiter = trio.CapacityLimiter(1)

    async def write(lines: Sequence[bytes]) -> None:
        await trio.to_thread.run_sync(write_out, lines, limiter=limiter)

    return write


def _append(path: Path, lines: Sequence[bytes]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
        file.write(_line_ending(path, os.fstat(file.fileno()).st_size) + b"".join(lines))
        file.flush()
        size = os.fstat(file.fileno()).st_size
    if size > MAX_FILE_BYTES:
        with contextlib.suppress(OSError):  # a folder that cannot be written must not stop the log
            _rotate(path)


def _rotate(path: Path) -> None:
    files = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, OLD_FILES + 1))]
    for newer, older in reversed(list(itertools.pairwise(files))):
        if newer.exists():
            newer.replace(older)


def _line_ending(path: Path, size: int) -> bytes:
    """Return a newline if the last line of a file lacks one, because a process was killed while it wrote it."""
    if not size:  # empty, or not a regular file
        return b""
    with contextlib.suppress(OSError), path.open("rb") as file:  # a writable file may be unreadable
        file.seek(size - 1)
        return b"" if file.read(1) == b"\n" else b"\n"
    return b""


def _to_stdout(lines: Sequence[bytes]) -> None:
    sys.stdout.flush()
    with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as file:
        file.write(b"".join(lines))


@attrs.define(eq=False)
class AuditLog:
    """Audit log of one router; lines are written in order.

    Attributes:
        write: Writes to the sink; a config reload may replace it.
        utcnow: Wall clock.
        is_failing: Whether the last write failed.
    """

    write: Write
    utcnow: Callable[[], datetime]
    pause_seconds: float = PAUSE_SECONDS
    is_failing: bool = False
    _sender: trio.MemorySendChannel[bytes] = attrs.field(init=False)
    _lines: trio.MemoryReceiveChannel[bytes] = attrs.field(init=False)
    _batch: list[bytes] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._sender, self._lines = trio.open_memory_channel[bytes](MAX_WAITING_LINES)

    async def record_config(self, config: RoutingConfig, kind: str = "config") -> None:
        """Record a reloaded config, or the one at the `start`."""
        await self._sender.send(self._lifecycle_line(kind, config, {"config": config_digest(config)}))

    async def record_request(self, fields: Mapping[str, Any]) -> None:
        """Record a request, even if it is cancelled; wait while the queue is full.

        A line that waits for too long is dropped, which is logged.
        """
        line = self._line("decision", "router.dispatch", fields)
        try:
            self._sender.send_nowait(line)  # a cancel scope per request would cost more than its line
        except trio.WouldBlock:
            with trio.move_on_after(PUT_SECONDS, shield=True) as patience:
                await self._sender.send(line)
            if patience.cancelled_caught:
                error = f"queue full for {PUT_SECONDS:g} s"
                _log.error("audit log line dropped", requestID=fields["requestID"], error=error)

    def end_nowait(self, config: RoutingConfig) -> None:
        """Record the end of the log, unless the queue is full."""
        with contextlib.suppress(trio.WouldBlock):
            self._sender.send_nowait(self._lifecycle_line("end", config, {}))

    def _lifecycle_line(self, kind: str, config: RoutingConfig, fields: Mapping[str, str]) -> bytes:
        named = {"router": config.name, "release": __version__}
        return self._line(kind, f"router.{kind}", {**named, **fields})

    def _line(self, kind: str, message: str, fields: Mapping[str, Any]) -> bytes:
        return json_text.dumps({"ts": self.utcnow().isoformat(), "kind": kind, "msg": message, **fields}) + b"\n"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> NoReturn:
        """Write lines until cancelled, then the rest."""
        task_status.started()
        try:
            while True:
                self._batch.append(await self._lines.receive())
                await self._write_batch()
                await trio.sleep(self.pause_seconds)
        finally:
            with trio.move_on_after(DRAIN_SECONDS, shield=True):
                await self._write_batch()

    async def _write_batch(self) -> None:
        """Write the queued lines; after a cancellation the next call writes them."""
        while len(self._batch) < MAX_WAITING_LINES:
            try:
                self._batch.append(self._lines.receive_nowait())
            except trio.WouldBlock:
                break
        if not self._batch:
            return
        try:
            await self.write(self._batch)
            self.is_failing = False
        except OSError as exc:
            if not self.is_failing:
                _log.error("audit log write failed", lines=len(self._batch), error=str(exc))
            self.is_failing = True
        self._batch = []


def fields_of(record: Record, config: RoutingConfig, seconds: float) -> dict[str, Any]:
    """Return the fields of the line of one request.

    Args:
        record: Record of the request.
        config: Config that applied to it.
        seconds: Its duration.
    """
    request, decided, answer = record.request, record.decided, record.answer
    facts, decision, usage = decided.facts, decided.decision, answer.usage
    backend = config.backends.get(answer.backend)
    return {
        "router": config.name,
        "requestID": request.request_id,
        "traceID": request.trace["traceparent"][3:35],
        "method": request.method,
        "path": request.path,
        "source": request.peer,
        "team": _cut(decided.principal.team),
        "tenant": _cut(decided.principal.tenant),
        "key": decided.principal.name,
        "model": _cut(facts.model) if facts else "",
        "classification": _cut_all(sorted(facts.classes)) if facts and facts.classes else [],
        "taskComplexity": facts.complexity if facts else "",
        "status": answer.status,
        "outcome": answer.outcome,
        "rule": decided.rule if decision else "",
        "why": decision.why if decision else "",
        "backend": answer.backend,
        "backendTier": "" if backend is None else "local" if backend.local else "cloud",
        "answeredModel": _cut(answer.model),
        "attempts": [
            {
                "backend": each.backend,
                "result": each.result,
                "status": each.status,
                "ms": round(each.seconds * 1000, 1),
                "detail": _cut(each.detail),
            }
            for each in record.attempts
        ],
        "streamed": answer.streamed,
        "continuations": answer.continuations,
        "notContinued": answer.not_continued,
        "latencyMs": round(seconds * 1000, 1),
        "firstByteMs": None if answer.first_byte_seconds is None else round(answer.first_byte_seconds * 1000, 1),
        "promptTokens": usage.prompt if usage else None,
        "completionTokens": usage.completion if usage else None,
        "cachedTokens": usage.cached if usage else None,
        "droppedFields": _cut_all(answer.dropped) if answer.dropped else [],
    }


def _cut(text: str) -> str:
    return text if len(text) <= MAX_FIELD_CHARS else f"{text[:MAX_FIELD_CHARS]}…"


def _cut_all(texts: Iterable[str]) -> list[str]:
    return [_cut(each) for each in itertools.islice(texts, MAX_ITEMS)]

"""Probes of an engine, and the two watches that detect a hang: while it loads, and while it serves.

The watches collect the input of `supervisor.values.liveness`: the kernel's statistics at each tick, and the engine's
answers to probes.
"""

import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import attrs
import trio

from llmkube.base.errors import LOCAL_CONNECT_ERRNOS
from llmkube.base.http.client import HttpClient
from llmkube.base.http.errors import BodyTooLargeError, HttpError, ProtocolError
from llmkube.base.http.message import NO_HEADERS, Headers, Response
from llmkube.base.waiting import skip_count, wait_tick
from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.process.host_runtime import EngineQueries
from llmkube.runtimes.process.host_runtimes import queries_of
from llmkube.supervisor.values.liveness import (
    FINE,
    EngineStats,
    Limits,
    Liveness,
    Load,
    Probe,
    ProbeResult,
    step,
    step_load,
)
from llmkube.supervisor.values.proxy_config import IN_FLIGHT_PATH

FIRST_POLL_SECONDS = 0.02
POLL_CAP_SECONDS = 0.25
LONG_POLL_CAP_SECONDS = 2.0
"""Maximum interval of readiness polls for a load of minutes, which are a hundredth of its duration apart."""

ANSWER_SECONDS = 5.0
TOKEN_SECONDS = 20.0
IDLE_POLL_SECONDS = 0.1
RECHECK_SECONDS = 4.0
"""Time after which a stopped process is sampled again: it may have been stopped for a moment only."""

Health = Literal["ok", "busy", "gone"]
_Reply = Response | Literal["gone", "late", "odd", "unsent"]
ReadStats = Callable[[], Awaitable[EngineStats | None]]
ReadStatsNowait = Callable[[], EngineStats | None]

_LONGEST_BUILD: Final = 100
_LONGEST_ERROR: Final = 300

ERROR_REPLY: Final = "it answers "
"""Beginning of the error of an engine that does not hang, but fails requests for one token."""

MALFORMED_RESPONSE: Final = (ProtocolError, BodyTooLargeError)
"""Responses that are malformed but prove that a process listens there."""


def bearer(api_key: str) -> Headers:
    """Return the header that sends a key to an engine; no header for an engine without keys."""
    return Headers.of({"Authorization": f"Bearer {api_key}"}) if api_key else NO_HEADERS


async def wait_ready(http: HttpClient, url: str) -> None:
    """Return when the engine answers 200 on its readiness URL; the caller sets the deadline.

    The pause between polls is a twentieth of the time so far, and of a long load a hundredth, so that a model is used
    soon after it is loaded.
    """
    started_at = trio.current_time()
    while await probe(http, url) != "ok":
        elapsed = trio.current_time() - started_at
        await trio.sleep(
            max(FIRST_POLL_SECONDS, min(elapsed / 20, POLL_CAP_SECONDS), min(elapsed / 100, LONG_POLL_CAP_SECONDS))
        )


async def probe(http: HttpClient, url: str) -> Health:
    """Probe once: `ok`, `busy` (it listens, but sent no 200 in time) or `gone` (nothing listens, or it hung up)."""
    reply = await _get(http, url)
    if reply == "gone":
        return "gone"
    return "ok" if isinstance(reply, Response) and reply.status == 200 else "busy"


@attrs.frozen
class Engine:
    """A running engine as an HTTP server.

    Attributes:
        url: Scheme, host and port.
        plan: The plan that it was started with.
        credentials: Headers that authenticate a request; `/health` needs none.
        proxy_url: Its proxy, which counts the requests in flight if the engine does not; "" without a proxy.
    """

    http: HttpClient
    url: str
    plan: LaunchPlan
    credentials: Headers = attrs.field(default=NO_HEADERS, repr=False)
    proxy_url: str = ""

    @property
    def queries(self) -> EngineQueries:
        """The queries that engines of its runtime answer."""
        return queries_of(self.plan.runtime)

    @property
    def ready_url(self) -> str:
        """The URL that answers a GET with 200 when the engine is ready."""
        return self.url + self.plan.ready_path

    async def counters(self) -> ProbeResult | None:
        """Return its requests and decode counters; each query may take `ANSWER_SECONDS`. None if none can be sent."""
        queries = self.queries
        reply = await self._get(queries.metrics_path or self.plan.ready_path)
        if reply == "unsent":
            return None
        if reply == "gone":
            return ProbeResult("gone")
        metrics = _metrics(reply, queries) if queries.metrics_path else {}
        work: int | None = None
        if metrics.keys() & queries.work:
            work = int(sum(metrics.get(name, 0.0) for name in queries.work))
        tokens = metrics.get(self._token_metric)
        if work == 0:
            return ProbeResult(
                "ok", work=0, counters=tuple(metrics.get(name, 0.0) for name in queries.progress), tokens=tokens
            )
        late = reply == "late"
        slots = b"" if late else await self._slots()
        if work is None:
            work = _busy_slots(slots)
        counters = None
        if work is not None and (metrics or slots):
            # Not every build counts batches; slots show the progress of a prompt, in fields that differ by build.
            counters = (*(metrics.get(name, 0.0) for name in queries.progress), float(zlib.crc32(slots)))
        if work is None:
            work = await self._proxied_requests()
        health = "ok" if metrics else await probe(self.http, self.ready_url)
        return ProbeResult(health, late=late, work=work, counters=counters, tokens=tokens)

    async def _slots(self) -> bytes:
        path = self.queries.slots_path
        return _body(await self._get(path)) if path and "--no-slots" not in self.plan.argv else b""

    async def _proxied_requests(self) -> int | None:
        """Return the number of requests in flight in its proxy; None if unknown."""
        if not self.proxy_url:
            return None
        try:
            return int(json.loads(_body(await _get(self.http, self.proxy_url + IN_FLIGHT_PATH, self.credentials))))
        except (ValueError, TypeError):
            return None

    async def one_token(self) -> ProbeResult | None:
        """Request one token; any response but an error of the engine is a success. None if no request can be sent."""
        try:
            reply = await self._request_token()
        except MALFORMED_RESPONSE:
            return ProbeResult("busy", token=False)
        except HttpError as error:
            return None if _is_resource_exhaustion(error) else ProbeResult("gone", token=False)
        failed = _token_error(reply, self._token_check)
        token = reply is not None and not failed
        is_full = reply is not None and reply.status == 503  # it has no place for the request now
        return ProbeResult("ok" if token else "busy", token=token, error="" if is_full else failed)

    async def token_error(self) -> str:
        """Request one token; return how that fails, or "" if it succeeds or takes long."""
        try:
            return _token_error(await self._request_token(), self._token_check)
        except HttpError:
            return ""  # its exit, or another program on its port, is detected elsewhere

    async def _request_token(self) -> Response | None:
        """Return the response; None if there is none within `TOKEN_SECONDS`."""
        path, body = self._token_request()
        content = self.credentials.with_("Content-Type", "application/json")
        with trio.move_on_after(TOKEN_SECONDS):
            if self.plan.engine:  # an engine of the owner's, which need not compute tokens
                return await self.http.request("GET", self.ready_url, headers=self.credentials)
            url = self.url + path
            return await self.http.request("POST", url, headers=content, body=json.dumps(body).encode())
        return None

    async def wait_idle(self) -> None:
        """Return when no request is in flight or queued, or if that is unknown; the caller sets the deadline.

        llama-server counts both in its metrics (with `--metrics`, which our plans set); without them its slots show
        requests in progress, but not queued ones.
        """
        while await self.in_flight():  # noqa: ASYNC110 - there is no event: another process knows it
            await trio.sleep(IDLE_POLL_SECONDS)

    async def in_flight(self) -> int:
        """Return the number of requests in progress or queued; 0 if unknown."""
        queries = self.queries
        metrics = _metrics(await self._get(queries.metrics_path), queries) if queries.metrics_path else {}
        if metrics.keys() & queries.work:
            return int(sum(metrics.get(name, 0.0) for name in queries.work))
        return _busy_slots(await self._slots()) or await self._proxied_requests() or 0

    async def model_names(self) -> frozenset[str]:
        """Return the names of the models that it reports to serve; empty if it reports none."""
        try:
            models = (await self._json(self.queries.names_path))["data"]
            # llama.cpp sorts the names of --alias: the first one may be any of them
            return frozenset(str(name) for model in models for name in (model["id"], *model.get("aliases", ())))
        except (AttributeError, KeyError, TypeError):
            return frozenset()

    async def build(self) -> str:
        """Return the build that it reports; "" if it reports none."""
        info = await self._json(self.queries.build_path)
        build = info.get("build_info") if isinstance(info, dict) else None
        return build[:_LONGEST_BUILD] if isinstance(build, str) else ""

    async def _json(self, path: str) -> Any:
        """Return the JSON that it answers on a path; None without a path, and for anything but a 200 with JSON."""
        try:
            return json.loads(_body(await self._get(path))) if path else None
        except ValueError:
            return None

    async def _get(self, path: str) -> _Reply:
        return await _get(self.http, self.url + path, self.credentials)

    @property
    def _token_metric(self) -> str:
        """The metric of its tokens: generated ones, or those of prompts if it generates none."""
        reads = {"--reranking", "--embedding"}.intersection(self.plan.argv)
        return "prompt_tokens_total" if reads else "tokens_predicted_total"

    @property
    def _token_check(self) -> str:
        """The request that shows that it can compute, for messages."""
        return f"GET {self.plan.ready_path}" if self.plan.engine else "a request for one token"

    def _token_request(self) -> tuple[str, dict[str, object]]:
        if "--reranking" in self.plan.argv:
            return "/v1/rerank", {"model": self.plan.alias, "query": "a", "documents": ["a"]}
        if "--embedding" in self.plan.argv:
            return "/v1/embeddings", {"model": self.plan.alias, "input": "a"}
        return "/v1/completions", {"model": self.plan.alias, "prompt": "a", "max_tokens": 1}


@attrs.define(eq=False)
class _PendingQuery:
    """The probe that an engine is answering now, or its result until the next sample includes it."""

    engine: Engine
    on_tokens: Callable[[float], None]
    asking: bool = False
    answer: ProbeResult | None = None

    @property
    def is_open(self) -> bool:
        """Whether a probe is running, or has a result that no sample includes yet."""
        return self.asking or self.answer is not None

    async def run(self, probe: Probe) -> None:
        """Run a probe; one at a time."""
        self.answer = await (self.engine.one_token() if probe is Probe.TOKEN else self.engine.counters())
        self.asking = False
        if self.answer is not None and self.answer.tokens is not None:
            self.on_tokens(self.answer.tokens)

    def add_to(self, stats: EngineStats) -> EngineStats:
        """Return a sample with the pending probe and its result."""
        if not self.is_open:
            return stats
        stats, self.answer = attrs.evolve(stats, asked=True, answer=self.answer), None
        return stats


async def watch(
    engine: Engine,
    read_stats: ReadStats,
    on_reachable: Callable[[bool], None],
    limits: Limits,
    *,
    read_stats_nowait: ReadStatsNowait | None = None,
    on_tokens: Callable[[float], None] = lambda _: None,
) -> str:
    """Watch a serving engine until it hangs, or fails requests for tokens; return what has stalled, or `ERROR_REPLY…`.

    Probes run in their own task: one that waits for its answer must not delay the next sample. A sample without
    consequences is taken by `read_stats_nowait` at the tick, without waking this task.

    Args:
        engine: The engine to probe.
        read_stats: Returns the kernel's statistics for its process; None once it has exited.
        on_reachable: Called when it becomes reachable or unreachable.
        limits: Maximum times without progress.
        read_stats_nowait: The same without waiting; returns None if only `read_stats` can tell.
        on_tokens: Called with the tokens computed since its start, whenever it reports them.
    """
    state, reachable, pending, hung = Liveness(), True, _PendingQuery(engine, on_tokens), ""
    skips = skip_count()

    def is_idle() -> bool:
        """Take a sample if it has no consequences; otherwise leave it to the task."""
        nonlocal state
        if read_stats_nowait is None or pending.is_open or (stats := read_stats_nowait()) is None:
            return False
        after, verdict = step(state, stats, trio.current_time(), limits)
        if verdict is not FINE or after.stopped_samples:
            return False
        state = after
        return True

    async with trio.open_nursery() as nursery:
        while not hung:
            if state.stopped_samples:
                await trio.sleep(RECHECK_SECONDS)
            elif await wait_tick(limits.tick_seconds, skips=skips, is_idle=is_idle):
                # the machine has slept: earlier answers are out of date
                skips = skip_count()
                state = attrs.evolve(state, probed_at=-limits.probe_seconds, backoff=0)
            stats = await read_stats()
            if stats is None:  # it has exited, which another task detects
                continue
            state, verdict = step(state, pending.add_to(stats), trio.current_time(), limits)
            hung = verdict.hung
            if verdict.reachable != reachable:
                reachable = verdict.reachable
                on_reachable(reachable)
            if verdict.probe is not Probe.NOTHING and not pending.asking:
                pending.asking = True
                nursery.start_soon(pending.run, verdict.probe)
        nursery.cancel_scope.cancel(reason="the engine hangs")
    return hung


async def watch_load(read_stats: ReadStats, report: Callable[[EngineStats], Awaitable[None]], limits: Limits) -> str:
    """Watch a load until it stalls; return what has stalled and for how long. `report` is called with each sample.

    A load that makes progress has no timeout: a large model on a slow disk may take hours.
    """
    load, stalled = Load(), ""
    while not stalled:
        await wait_tick(limits.tick_seconds)
        stats = await read_stats()
        if stats is not None:
            load, stalled = step_load(load, stats, trio.current_time(), limits)
            await report(stats)
    return stalled


def _token_error(reply: Response | None, request: str) -> str:
    """Return the error in the response to a request for one token, or for its substitute; "" for none.

    501 is none: the engine does not implement the path.
    """
    if reply is None or reply.status < 500 or reply.status == 501:
        return ""
    try:
        found = json.loads(reply.body)["error"]
        words = str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError):
        words = reply.body.decode("utf-8", "replace")
    words = " ".join(words.split())[:_LONGEST_ERROR]
    return f"{ERROR_REPLY}{reply.status} to {request}" + (f": {words}" if words else "")


def _metrics(reply: _Reply, queries: EngineQueries) -> dict[str, float]:
    """Return an engine's metrics by name; none for anything but a 200."""
    if not isinstance(reply, Response) or reply.status != 200:
        return {}
    numbers: dict[str, float] = {}
    for name, value in queries.metric.findall(reply.body):
        try:
            numbers[name.decode("ascii")] = float(value) + numbers.get(name.decode("ascii"), 0.0)
        except ValueError:
            continue
    return numbers


def _busy_slots(slots: bytes) -> int | None:
    try:
        return sum(bool(slot["is_processing"]) for slot in json.loads(slots))
    except (ValueError, KeyError, TypeError):
        return None


def _body(reply: _Reply) -> bytes:
    """Return the body of a 200; empty for anything else."""
    return reply.body if isinstance(reply, Response) and reply.status == 200 else b""


async def _get(http: HttpClient, url: str, credentials: Headers = NO_HEADERS) -> _Reply:
    """Return the response, or why there is none.

    `late`: none within `ANSWER_SECONDS`. `gone`: nothing listens, or the response is incomplete. `odd`: the response is
    too large, or not HTTP. `unsent`: this machine has no file descriptor or memory left for the request.
    """
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            return await http.request("GET", url, headers=credentials, max_body_bytes=4 * 1024 * 1024)
        except MALFORMED_RESPONSE:
            return "odd"
        except HttpError as error:
            return "unsent" if _is_resource_exhaustion(error) else "gone"
    return "late"


def _is_resource_exhaustion(error: BaseException | None) -> bool:
    """Whether the error, or its cause, is that this machine has run out of a resource."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_resource_exhaustion, error.exceptions))
    if error is None or (isinstance(error, OSError) and error.errno in LOCAL_CONNECT_ERRNOS):
        return error is not None
    return _is_resource_exhaustion(error.__cause__)

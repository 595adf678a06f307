"""What an engine answers, and the two watches that look after it: while it loads, and while it serves.

The watches gather what `progress` decides on: what the kernel sees each tick, what the engine says when it is asked.
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
"""For a load that has taken minutes: a hundredth of what it has taken, at most this."""

ANSWER_SECONDS = 5.0
TOKEN_SECONDS = 20.0
IDLE_POLL_SECONDS = 0.1
RECHECK_SECONDS = 4.0
"""After this long a process that was seen stopped is looked at again: it may have been stopped for a moment."""

Health = Literal["ok", "busy", "gone"]
_Reply = Response | Literal["gone", "late", "odd", "unasked"]
ReadStats = Callable[[], Awaitable[EngineStats | None]]
ReadStatsNowait = Callable[[], EngineStats | None]

_LONGEST_BUILD: Final = 100

MALFORMED_RESPONSE: Final = (ProtocolError, BodyTooLargeError)
"""An answer all the same: a process listens there."""


def bearer(api_key: str) -> Headers:
    """Return the header that shows an engine a key; none for an engine that asks for none."""
    return Headers.of({"Authorization": f"Bearer {api_key}"}) if api_key else NO_HEADERS


async def wait_ready(http: HttpClient, url: str) -> None:
    """Return when the engine answers 200 on its readiness URL; a deadline is the caller's.

    The first questions follow each other closely, since a small model loads in less time than a comfortable poll.
    """
    pause, started_at = FIRST_POLL_SECONDS, trio.current_time()
    while await ask(http, url) != "ok":
        await trio.sleep(pause)
        cap = max(POLL_CAP_SECONDS, min((trio.current_time() - started_at) / 100, LONG_POLL_CAP_SECONDS))
        pause = min(pause * 1.5, cap)


async def ask(http: HttpClient, url: str) -> Health:
    """Ask once: `ok`, `busy` (it listens, but gave no 200 in time) or `gone` (nothing listens, or it hung up)."""
    reply = await _get(http, url)
    if reply == "gone":
        return "gone"
    return "ok" if isinstance(reply, Response) and reply.status == 200 else "busy"


@attrs.frozen
class Engine:
    """Where an engine answers, and in which way one asks it for a token.

    Attributes:
        http: The way to it.
        url: Scheme, host and port.
        plan: What it was started with.
        credentials: What lets a request in; `/health` answers without.
        proxy_url: Where its proxy is asked how many requests are in flight, if the engine says it of none; "" without.
    """

    http: HttpClient
    url: str
    plan: LaunchPlan
    credentials: Headers = attrs.field(default=NO_HEADERS, repr=False)
    proxy_url: str = ""

    @property
    def queries(self) -> EngineQueries:
        """What engines of its runtime can be asked."""
        return queries_of(self.plan.runtime)

    @property
    def ready_url(self) -> str:
        """GET it: 200 means ready."""
        return self.url + self.plan.ready_path

    async def counters(self) -> ProbeResult | None:
        """Ask what it is at and how far it is; each question has `ANSWER_SECONDS`. None: this host could not ask."""
        asked = self.queries
        reply = await self._get(asked.metrics_path or self.plan.ready_path)
        if reply == "unasked":
            return None
        if reply == "gone":
            return ProbeResult("gone")
        metrics = _numbers(reply, asked) if asked.metrics_path else {}
        work: int | None = None
        if metrics.keys() & asked.work:
            work = int(sum(metrics.get(name, 0.0) for name in asked.work))
        tokens = metrics.get(self._token_metric)
        if work == 0:
            return ProbeResult(
                "ok", work=0, counters=tuple(metrics.get(name, 0.0) for name in asked.progress), tokens=tokens
            )
        late = reply == "late"
        slots = b"" if late else await self._slots()
        if work is None:
            work = _busy_slots(slots)
        counters = None
        if work is not None and (metrics or slots):
            # Not every build counts batches; the slots say how much of a prompt is done, in fields that move about.
            counters = (*(metrics.get(name, 0.0) for name in asked.progress), float(zlib.crc32(slots)))
        if work is None:
            work = await self._proxied_requests()
        health = "ok" if metrics else await ask(self.http, self.ready_url)
        return ProbeResult(health, late=late, work=work, counters=counters, tokens=tokens)

    async def _slots(self) -> bytes:
        path = self.queries.slots_path
        return _body(await self._get(path)) if path and "--no-slots" not in self.plan.argv else b""

    async def _proxied_requests(self) -> int | None:
        """Return how many requests its proxy has passed on and not answered; None where nothing says."""
        if not self.proxy_url:
            return None
        try:
            return int(json.loads(_body(await _get(self.http, self.proxy_url + IN_FLIGHT_PATH, self.credentials))))
        except (ValueError, TypeError):
            return None

    async def one_token(self) -> ProbeResult | None:
        """Ask for the least that it can compute; any answer that is not an error of its own will do.

        None: this host could not ask.
        """
        try:
            status = await self._request_token()
        except MALFORMED_RESPONSE:
            return ProbeResult("busy", token=False)
        except HttpError as error:
            return None if _is_resource_exhaustion(error) else ProbeResult("gone", token=False)
        token = status is not None and status < 500
        return ProbeResult("ok" if token else "busy", token=token)

    async def token_error(self) -> str:
        """Ask for the least that it can compute; return how it fails, and "" when it does not, or takes long."""
        try:
            status = await self._request_token()
        except HttpError:
            return ""  # its exit, or another program at its port, is noticed elsewhere
        return f"it answers {status} to a request for one token" if status is not None and status >= 500 else ""

    async def _request_token(self) -> int | None:
        """Return the status of the answer; None when there is none in `TOKEN_SECONDS`."""
        path, body = self._token_request()
        content = self.credentials.with_("Content-Type", "application/json")
        with trio.move_on_after(TOKEN_SECONDS):
            url = self.url + path
            return (await self.http.request("POST", url, headers=content, body=json.dumps(body).encode())).status
        return None

    async def wait_idle(self) -> None:
        """Return when no request is in flight or queued, or when that cannot be told; a deadline is the caller's.

        llama-server counts both in its metrics (with `--metrics`, which our plans give); without them its slots say who
        is at work, but not who waits.
        """
        while await self.in_flight():  # noqa: ASYNC110 - another process knows it: there is no event
            await trio.sleep(IDLE_POLL_SECONDS)

    async def in_flight(self) -> int:
        """Return how many requests it works on or has queued; 0 when it does not say."""
        asked = self.queries
        metrics = _numbers(await self._get(asked.metrics_path), asked) if asked.metrics_path else {}
        if metrics.keys() & asked.work:
            return int(sum(metrics.get(name, 0.0) for name in asked.work))
        return _busy_slots(await self._slots()) or await self._proxied_requests() or 0

    async def model_names(self) -> frozenset[str]:
        """Return the names of the models that it says it serves; empty when it does not say."""
        try:
            return frozenset(str(model["id"]) for model in (await self._json(self.queries.names_path))["data"])
        except (KeyError, TypeError):
            return frozenset()

    async def build(self) -> str:
        """Return the build that it says serves now; "" when it does not say."""
        info = await self._json(self.queries.build_path)
        build = info.get("build_info") if isinstance(info, dict) else None
        return build[:_LONGEST_BUILD] if isinstance(build, str) else ""

    async def _json(self, path: str) -> Any:
        """Return what it answers on a path; None for no path, and for anything but a 200 with JSON."""
        try:
            return json.loads(_body(await self._get(path))) if path else None
        except ValueError:
            return None

    async def _get(self, path: str) -> _Reply:
        return await _get(self.http, self.url + path, self.credentials)

    @property
    def _token_metric(self) -> str:
        """What of its metrics counts its tokens: those that it writes, or reads where it writes none."""
        reads = {"--reranking", "--embedding"}.intersection(self.plan.argv)
        return "prompt_tokens_total" if reads else "tokens_predicted_total"

    def _token_request(self) -> tuple[str, dict[str, object]]:
        if "--reranking" in self.plan.argv:
            return "/v1/rerank", {"model": self.plan.alias, "query": "a", "documents": ["a"]}
        if "--embedding" in self.plan.argv:
            return "/v1/embeddings", {"model": self.plan.alias, "input": "a"}
        return "/v1/completions", {"model": self.plan.alias, "prompt": "a", "max_tokens": 1}


@attrs.define(eq=False)
class _PendingQuery:
    """The question that is with an engine now, and what it has answered since the look before."""

    engine: Engine
    on_tokens: Callable[[float], None]
    asking: bool = False
    answer: ProbeResult | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a question, or an answer that no look has taken into account."""
        return self.asking or self.answer is not None

    async def put(self, question: Probe) -> None:
        """Ask; one question at a time."""
        self.answer = await (self.engine.one_token() if question is Probe.TOKEN else self.engine.counters())
        self.asking = False
        if self.answer is not None and self.answer.tokens is not None:
            self.on_tokens(self.answer.tokens)

    def add_to(self, stats: EngineStats) -> EngineStats:
        """Return a look together with what has been asked and answered since the one before."""
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
    """Return what stands still and for how long, when the engine hangs; `on_reachable` gets whether it can be reached.

    A question to the engine is a task beside the looks: one that waits for its answer must not delay the next look.
    Nor is this task woken at each tick: a look from which nothing follows is taken by `read_stats_nowait`, on the way.

    Args:
        engine: Whom to ask.
        read_stats: Returns what the kernel says of its process.
        on_reachable: Called when it can be reached, or cannot be any more.
        limits: How long what may stand still.
        read_stats_nowait: The same without waiting; None when only `read_stats` can tell.
        on_tokens: Called with the tokens that it has computed since its start, when it says so.
    """
    state, reachable, inquiry, hung = Liveness(), True, _PendingQuery(engine, on_tokens), ""
    skips = skip_count()

    def is_idle() -> bool:
        """Take one look, unless something follows from it: then it is for the task to take."""
        nonlocal state
        if read_stats_nowait is None or inquiry.is_open or (stats := read_stats_nowait()) is None:
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
                # the machine has slept: what was said is old
                skips = skip_count()
                state = attrs.evolve(state, probed_at=-limits.probe_seconds, backoff=0)
            stats = await read_stats()
            if stats is None:  # it has ended, which another task notices
                continue
            state, verdict = step(state, inquiry.add_to(stats), trio.current_time(), limits)
            hung = verdict.hung
            if verdict.reachable != reachable:
                reachable = verdict.reachable
                on_reachable(reachable)
            if verdict.ask is not Probe.NOTHING and not inquiry.asking:
                inquiry.asking = True
                nursery.start_soon(inquiry.put, verdict.ask)
        nursery.cancel_scope.cancel(reason="the engine hangs")
    return hung


async def watch_load(read_stats: ReadStats, report: Callable[[EngineStats], Awaitable[None]], limits: Limits) -> str:
    """Return what stands still and for how long, when a load has stalled; call `report` after each look.

    There is no clock on a load that moves: a large model from a slow disk takes as long as it takes.
    """
    load, stalled = Load(), ""
    while not stalled:
        await wait_tick(limits.tick_seconds)
        stats = await read_stats()
        if stats is not None:
            load, stalled = step_load(load, stats, trio.current_time(), limits)
            await report(stats)
    return stalled


def _numbers(reply: _Reply, asked: EngineQueries) -> dict[str, float]:
    """The metrics of an engine by their names; none of anything but a 200."""
    if not isinstance(reply, Response) or reply.status != 200:
        return {}
    numbers: dict[str, float] = {}
    for name, value in asked.metric.findall(reply.body):
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
    """The body of a 200, and nothing of anything else."""
    return reply.body if isinstance(reply, Response) and reply.status == 200 else b""


async def _get(http: HttpClient, url: str, credentials: Headers = NO_HEADERS) -> _Reply:
    """What is answered; `late` after `ANSWER_SECONDS`, and `gone` when nothing listens or the answer is incomplete.

    `odd`: a process has answered, but too much, or nothing that is HTTP. `unasked`: this host has no descriptor left,
    or no memory, for the question.
    """
    with trio.move_on_after(ANSWER_SECONDS):
        try:
            return await http.request("GET", url, headers=credentials, max_body_bytes=4 * 1024 * 1024)
        except MALFORMED_RESPONSE:
            return "odd"
        except HttpError as error:
            return "unasked" if _is_resource_exhaustion(error) else "gone"
    return "late"


def _is_resource_exhaustion(error: BaseException | None) -> bool:
    """Whether what went wrong, or what caused it, is that this host has run out of something."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_resource_exhaustion, error.exceptions))
    if error is None or (isinstance(error, OSError) and error.errno in LOCAL_CONNECT_ERRNOS):
        return error is not None
    return _is_resource_exhaustion(error.__cause__)

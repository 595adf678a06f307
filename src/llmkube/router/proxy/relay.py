"""Passes a stream that has begun on to the client, event by event, and says how it ended.

The client's pace is the backend's: nothing is read ahead of it. A backend is waited for as long as it says something in
time; while the client is waited for, no time counts against the backend.
"""

import enum
from collections.abc import Sequence
from typing import Final

import trio

from llmkube.base.http.errors import HttpError
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.proxy.attempt import Begun
from llmkube.router.proxy.client_stream import ClientStream
from llmkube.router.proxy.event_stream import DONE, Kind, OversizedEventError
from llmkube.router.refusals import error_object

UNTRANSLATABLE: Final = "the backend's answer cannot be said in the client's dialect"

_LAST_WORDS_SECONDS: Final = 0.1
"""For the end of the backend's body after the end of its answer, so that the connection can be used again."""


class Ending(enum.Enum):
    """How a stream ended; the names are those of the audit log."""

    WHOLE = "ok"
    ERROR = "backend_error"
    SILENT = "backend_silent"
    BROKEN = "broken_off"
    GARBAGE = "malformed"
    CUT = "cut_short"
    UNTRANSLATABLE = "untranslatable"


_SAID: Final = {
    Ending.SILENT: "the backend went silent before the end of its answer",
    Ending.BROKEN: "the backend broke off before the end of its answer",
    Ending.GARBAGE: "the backend sent something that is no piece of an answer",
    Ending.CUT: "the backend ended the stream before the end of its answer",
}


async def relay(begun: Begun, client: ClientStream) -> Ending:
    """Pass a stream on to its end, which is an error event unless it is whole."""
    try:
        ending = await _pass(begun, client)
        if ending is Ending.WHOLE:
            if not begun.judge.done:
                await client.send(DONE)
            await client.end()
    except DialectError as exc:
        await client.fail(error_object(502, f"{UNTRANSLATABLE}: {exc}", f"stream_{Ending.UNTRANSLATABLE.value}"))
        return Ending.UNTRANSLATABLE
    if ending is Ending.WHOLE:
        await _read_out(begun)
    elif ending is Ending.ERROR:
        error = begun.judge.error or {}
        await client.fail(error_object(502, "the backend failed", "backend_error") | error)
    else:
        await client.fail(error_object(502, _SAID[ending], f"stream_{ending.value}"))
    return ending


async def _pass(begun: Begun, client: ClientStream) -> Ending:
    await client.send(_joined(begun, begun.events))
    with trio.CancelScope() as silence:
        until = trio.current_time() + begun.silence_seconds
        while not begun.judge.done:
            silence.deadline = until
            try:
                piece = await begun.answer.receive_some()
                events = begun.splitter.feed(piece)
            except HttpError:
                return Ending.BROKEN
            except OversizedEventError:
                return Ending.GARBAGE
            silence.deadline = float("inf")
            if not piece:
                return Ending.WHOLE if begun.judge.is_whole and not begun.splitter.rest else Ending.CUT
            read = [(begun.judge.take(event), event) for event in events]
            kinds = [kind for kind, _ in read]
            bad = next((at for at, kind in enumerate(kinds) if kind in (Kind.ERROR, Kind.GARBAGE)), None)
            await client.send(_joined(begun, read[:bad]))
            if bad is not None:
                return Ending.ERROR if kinds[bad] is Kind.ERROR else Ending.GARBAGE
            if events:
                until = trio.current_time() + begun.silence_seconds
    return Ending.SILENT if silence.cancelled_caught else Ending.WHOLE


def _joined(begun: Begun, read: Sequence[tuple[Kind, bytes]]) -> bytes:
    hides = begun.hides_usage
    return b"".join(event for kind, event in read if not (hides and kind is Kind.USAGE))


async def _read_out(begun: Begun) -> None:
    with trio.move_on_after(_LAST_WORDS_SECONDS):
        try:
            while not begun.answer.reusable and await begun.answer.receive_some():
                pass
        except HttpError:
            return

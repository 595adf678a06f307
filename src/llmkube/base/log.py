"""Structured logging: an event with keys, as JSON lines for machines or short lines for a terminal, without secrets.

Modules use `log = structlog.get_logger()` and `log.info("registered endpoint", name=…, hostIP=…, port=…)`; a program
calls `configure_logging` once. Records of the standard library's `logging` are written in the same format.
"""

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import Any, Final, Literal, TextIO

from llmkube.base.errors import UserError
from llmkube.base.messages import escape_controls
from llmkube.base.settings import LOG_LEVELS

_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]  # its tracebacks are not used: 0.1 s and 4 MB in each program
import structlog  # noqa: E402
from structlog.typing import EventDict, Processor  # noqa: E402

del sys.modules["rich"]
if _rich is not None:
    sys.modules["rich"] = _rich

Style = Literal["json", "console"]

_SYNONYMS = {"warn": "warning"}  # both spellings are in use in guides for the agent

REDACTED = "[redacted]"
# Compared without case, "-" and "_": "api_key", "apiKey" and "API-Key" are the same secret.
_SECRET_KEYS = frozenset({"token", "bearertoken", "authorization", "apikey", "password", "passwd", "secret", "cookie"})
_SECRET_TEXTS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"(?<=://)[^/?#@\s]+(?=@)"),  # https://user:password@host, https://token@host
)
_MAX_DEPTH = 6  # levels of nesting; no log line of ours is deeper

RECENT_CHARS: Final = 64 * 1024


class RecentLog:
    """Buffer of the last lines of the log, from level `info`. Any thread may write."""

    def __init__(self) -> None:
        self._text, self._written, self._lock = "", 0, threading.Lock()

    def write(self, line: str) -> None:
        """Append a line."""
        with self._lock:
            self._text = f"{self._text}{line}\n"[-RECENT_CHARS:]
            self._written += len(line) + 1

    def after(self, number: int) -> tuple[str, int]:
        """Return the text after the first `number` characters, as far as it is kept, and the number of all."""
        with self._lock:
            missing = self._written - number
            return (self._text[-missing:] if missing else ""), self._written


def parse_level(text: str) -> int:
    """Return the standard library's number for `debug`, `info`, `warning` or `error`, in any case.

    Raises:
        UserError: The level is unknown.
    """
    name = text.strip().lower()
    name = _SYNONYMS.get(name, name)
    if name not in LOG_LEVELS:
        raise UserError(f'"{text}" is not a log level; choose {", ".join(LOG_LEVELS)}')
    return logging.getLevelNamesMapping()[name.upper()]


def configure_logging(
    level: str = "info", *, style: Style = "json", stream: TextIO | None = None, recent: RecentLog | None = None
) -> None:
    """Write all logs of this process, from `level` up, to one stream.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        style: `json` is one object per line with `ts`, `level`, `msg`; `console` is one short line, a stack below it.
        stream: By default the current `sys.stderr` at each write (a live display may replace it).
        recent: Gets the lines as on a console, those of level `info` too.

    Raises:
        UserError: The level is unknown.
    """
    threshold = parse_level(level)
    target = stream if stream is not None else _CurrentStderr()
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        # A terminal shows local time, like the other lines on it; machines read UTC.
        structlog.processors.TimeStamper(fmt="iso", utc=style == "json", key="ts"),
        structlog.processors.format_exc_info,
        redact_secrets,
    ]
    final: list[Processor] = [_ordered, _render_json() if style == "json" else render_console]
    if recent is not None:
        final.insert(1, partial(_keep, recent, threshold))
    structlog.configure(
        processors=[*shared, *final],
        wrapper_class=structlog.make_filtering_bound_logger(
            threshold if recent is None else min(threshold, logging.INFO)
        ),
        logger_factory=structlog.PrintLoggerFactory(file=target),  # type: ignore[arg-type]  # it only calls write and flush
        cache_logger_on_first_use=False,  # tests and `llmkube up` configure more than once
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Other packages log only warnings and errors, unless the level is debug: httpx logs every request at info.
    root.setLevel(max(threshold, logging.WARNING) if threshold > logging.DEBUG else logging.INFO)


def _keep(recent: RecentLog, threshold: int, logger: Any, method: str, event: EventDict) -> EventDict:
    """Keep an event, and drop it unless it has the level of the stream."""
    recent.write(render_console(logger, method, event))
    if logging.getLevelNamesMapping()[event["level"].upper()] < threshold:
        raise structlog.DropEvent
    return event


def redact_secrets(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Redact the values of secret-looking keys, and credentials inside texts, including nested values."""
    return {key: REDACTED if _is_secret(key) and value else _redacted(value) for key, value in event.items()}


def render_console(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """Return `12:04:05 INFO  registered endpoint  name=chat port=51234`, with a stack or traceback below it.

    Control characters are escaped: a text of another machine must not control the terminal, or look like a line.
    """
    rest = dict(event)
    clock = str(rest.pop("ts", ""))[11:19]
    level = str(rest.pop("level", "info")).upper()
    message = str(rest.pop("msg", ""))
    traces = [str(trace) for key in ("stack", "exception") if (trace := rest.pop(key, ""))]
    keys = " ".join(f"{key}={_quoted(value)}" for key, value in rest.items())
    line = f"{clock} {level:<7} {message}" + (f"  {keys}" if keys else "")
    return "\n".join([escape_controls(line), *(escape_controls(trace, keep="\n\t") for trace in traces)])


class _CurrentStderr:
    """Write to the current `sys.stderr`, which a live terminal display replaces to keep its own lines whole.

    Write errors (terminal closed, disk full) are ignored: a log line must not end a program.
    """

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def _render_json() -> Processor:
    # without spaces, like the other JSON logs in a cluster: guides search for `"msg":"registered endpoint"`
    render = structlog.processors.JSONRenderer(ensure_ascii=False, default=str, separators=(",", ":"))
    return lambda logger, method, event: escape_controls(str(render(logger, method, event)))


def _ordered(_logger: Any, _method: str, event: EventDict) -> EventDict:
    first = {"ts": event.pop("ts", ""), "level": event.pop("level", "info"), "msg": event.pop("event", "")}
    return {**first, **event}


def _is_secret(key: Any) -> bool:
    return isinstance(key, str) and re.sub(r"[-_]", "", key).lower() in _SECRET_KEYS


def _redacted(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        for pattern in _SECRET_TEXTS:
            value = pattern.sub(REDACTED, value)
        return value
    if depth >= _MAX_DEPTH:
        return value
    if isinstance(value, Mapping):
        return {k: REDACTED if _is_secret(k) and v else _redacted(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(item, depth + 1) for item in value]
    return value


def _quoted(value: Any) -> str:
    text = str(value)
    return f'"{text}"' if not text or re.search(r"[\s\"=]", text) else text

"""Ages in tables read as kubectl writes them: two units while young, one when old.

Facts: `k8s.io/apimachinery/pkg/util/duration.HumanDuration`, worked out from its outputs.
"""

from datetime import UTC, datetime
from typing import Any, Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_YEAR: Final = 365 * _DAY


def human_duration(seconds: float) -> str:
    """Return `45s`, `3m20s`, `25m`, `4h5m`, `20h`, `3d4h`, `40d`, `2y30d`, `9y`."""
    whole = int(seconds)
    if whole < -1:
        return "<invalid>"
    if whole < 2 * _MINUTE:
        return f"{max(whole, 0)}s"
    if whole < 10 * _MINUTE:
        return _two(whole, _MINUTE, "m", 1, "s")
    if whole < 3 * _HOUR:
        return f"{whole // _MINUTE}m"
    if whole < 8 * _HOUR:
        return _two(whole, _HOUR, "h", _MINUTE, "m")
    if whole < 2 * _DAY:
        return f"{whole // _HOUR}h"
    if whole < 8 * _DAY:
        return _two(whole, _DAY, "d", _HOUR, "h")
    if whole < 2 * _YEAR:
        return f"{whole // _DAY}d"
    if whole < 8 * _YEAR:
        return _two(whole, _YEAR, "y", _DAY, "d")
    return f"{whole // _YEAR}y"


def age(timestamp: Any, now: datetime) -> str:
    """Return how long ago an RFC 3339 timestamp was; `<unknown>` when it is none."""
    if not isinstance(timestamp, str) or not timestamp:
        return "<unknown>"
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return "<invalid>"
    then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
    return human_duration((now - then).total_seconds())


def _two(whole: int, large: int, large_name: str, small: int, small_name: str) -> str:
    rest = whole % large // small
    return f"{whole // large}{large_name}" + (f"{rest}{small_name}" if rest else "")

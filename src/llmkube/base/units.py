"""Numbers as people and Kubernetes write them: exact when read, short when shown.

Quantities follow the grammar of Kubernetes' `resource.Quantity`: a decimal number and one suffix, binary (`Ki` … `Ei`),
decimal (`n`, `u`, `m`, none, `k` … `E`) or an exponent (`e3`, `E-2`).
"""

import math
import re
from fractions import Fraction

from llmkube.base.errors import UserError

_BINARY = {suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)}
_DECIMAL = {
    suffix: Fraction(1000) ** power
    for power, suffix in zip(range(-3, 7), ("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), strict=True)
}
_SCALES = {**_BINARY, **_DECIMAL}
# No exponent of more than three digits: "1e999999999" must not become a number that fills the memory.
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?:[eE](?P<exponent>[+-]?\d{1,3})|(?P<suffix>[KMGTPE]i|[numkMGTPE])?)",
    re.ASCII,
)
_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|s|m|h|d))", re.ASCII)
_MAX_NUMBER_CHARS = 64  # no quantity needs more, and int() has a limit (and a ValueError) of its own


def parse_quantity(text: str | float, *, field: str = "") -> Fraction:
    """Return the exact value of a Kubernetes quantity: `24Gi`, `500m`, `1e3`, `0.5`.

    Raises:
        UserError: The text is not a quantity; the message names `field`.
    """
    written = str(text)
    match = _QUANTITY.fullmatch(written) if len(written) <= _MAX_NUMBER_CHARS else None
    if match is None:
        problem = f'"{_shortened(written)}" is not a quantity'
        raise UserError(f"{problem}; write a number and a unit, such as 24Gi, 500m or 1e3", field=field)
    number = Fraction(match["number"])
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"])
    return number * _SCALES[match["suffix"] or ""]


def parse_bytes(text: str | float, *, field: str = "") -> int:
    """Return a quantity of memory in whole bytes, rounded up as Kubernetes does.

    Raises:
        UserError: The text is not a quantity, or is negative.
    """
    value = parse_quantity(text, field=field)
    if value < 0:
        raise UserError(f'"{_shortened(str(text))}" is negative; memory cannot be less than 0', field=field)
    return math.ceil(value)


def format_bytes(count: float) -> str:
    """Return a size for people, in powers of 1024 with one decimal: `933.8 KiB`; whole bytes below 1 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        # 1023.95 KiB would be shown as "1024.0 KiB", which is the next unit's 1.0
        if abs(size) < 1023.95:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} PiB"


def parse_duration(text: str | float, *, field: str = "") -> float:
    """Return seconds: a bare number is seconds, otherwise numbers with `ms`, `s`, `m`, `h` or `d`, such as `1h30m`.

    Raises:
        UserError: The text is not a duration.
    """
    written = str(text).strip()
    if len(written) <= _MAX_NUMBER_CHARS:
        if re.fullmatch(r"\d+(?:\.\d+)?", written, re.ASCII):
            return float(written)
        parts = _DURATION.findall(written)
        if parts and "".join(number + unit for number, unit in parts) == written:
            return float(sum(Fraction(number) * _SECONDS[unit] for number, unit in parts))
    raise UserError(f'"{_shortened(written)}" is not a duration; write 90, 90s, 5m or 1h30m', field=field)


def format_duration(seconds: float) -> str:
    """Return a measured time with its significant digits: `3 ms`, `0.42 s`, `12.3 s`, `2m05s`, `1h02m`."""
    seconds = max(seconds, 0.0)
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_YEAR = 365 * _DAY

_AGES = (  # limit in seconds, the unit below it, and a smaller unit that is shown too
    (2 * _MINUTE, (1, "s"), None),
    (10 * _MINUTE, (_MINUTE, "m"), (1, "s")),
    (3 * _HOUR, (_MINUTE, "m"), None),
    (8 * _HOUR, (_HOUR, "h"), (_MINUTE, "m")),
    (2 * _DAY, (_HOUR, "h"), None),
    (8 * _DAY, (_DAY, "d"), (_HOUR, "h")),
    (2 * _YEAR, (_DAY, "d"), None),
    (8 * _YEAR, (_YEAR, "y"), (_DAY, "d")),
    (math.inf, (_YEAR, "y"), None),
)
"""Facts: `k8s.io/apimachinery/pkg/util/duration.HumanDuration`, derived from its outputs."""


def format_age(seconds: float) -> str:
    """Return an age as kubectl writes it: `45s`, `3m20s`, `25m`, `4h5m`, `20h`, `3d4h`, `40d`, `2y30d`, `9y`."""
    total = max(int(seconds), 0)
    (large, name), small = next((unit, minor) for limit, unit, minor in _AGES if total < limit)
    rest = total % large // small[0] if small else 0
    return f"{total // large}{name}" + (f"{rest}{small[1]}" if small and rest else "")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_NUMBER_CHARS else text[: _MAX_NUMBER_CHARS - 1] + "…"

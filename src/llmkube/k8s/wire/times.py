"""RFC 3339 timestamps in Kubernetes' formats. Pure."""

import datetime
import functools


@functools.lru_cache(maxsize=16)
def timestamp(moment: datetime.datetime) -> str:
    """Return a time in the format of `metav1.Time`: UTC, whole seconds, `2026-01-01T00:00:05Z`."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime.datetime) -> str:
    """Return a time in the format of `metav1.MicroTime`, which Leases use: UTC, microseconds."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str | None) -> datetime.datetime | None:
    """Return the time of a timestamp; None if it is invalid or has no time zone."""
    try:
        found = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None

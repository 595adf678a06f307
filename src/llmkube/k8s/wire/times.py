"""RFC 3339, as Kubernetes writes moments and as everything else writes them. Pure."""

import datetime
import functools


@functools.lru_cache(maxsize=16)
def timestamp(moment: datetime.datetime) -> str:
    """Return a moment as `metav1.Time` is written: UTC, whole seconds, `2026-01-01T00:00:05Z`."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime.datetime) -> str:
    """Return a moment as `metav1.MicroTime` is written, which Leases use: UTC, six digits of a second."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str | None) -> datetime.datetime | None:
    """Return the moment that a text names; None for one that names none, or one without a zone, which is no moment."""
    try:
        found = datetime.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None

"""The wall clock, for programs; what decides takes the time as an argument. Pure."""

import datetime


def utcnow() -> datetime.datetime:
    """Return the time on the wall clock, in UTC."""
    return datetime.datetime.now(datetime.UTC)

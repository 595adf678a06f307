"""The wall clock, for programs; functions that decide take the time as an argument. Pure."""

import datetime


def utcnow() -> datetime.datetime:
    """Return the current time in UTC."""
    return datetime.datetime.now(datetime.UTC)

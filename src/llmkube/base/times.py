"""The wall clock, for programs; functions that decide take the time as an argument. Pure."""

import datetime


def utcnow() -> datetime.datetime:
    """Return the current time in UTC."""
    return datetime.datetime.now(datetime.UTC)


def parse_http_date(text: str) -> datetime.datetime | None:
    """Return the time in a header of a response, such as Date; None if it is invalid."""
    import email.utils  # noqa: PLC0415 - commands need only the clock

    try:
        found = email.utils.parsedate_to_datetime(text)
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)

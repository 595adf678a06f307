"""A logger for modules that short commands import: structlog is imported with the first line that is logged. Pure."""

from typing import Any


class LazyLog:
    """Logger with the methods of `structlog.get_logger()`, whose import would double the start-up time of `list`."""

    def __getattr__(self, name: str) -> Any:
        """Return a method of the logger, such as `warning`."""
        import structlog  # noqa: PLC0415 - see above

        return getattr(structlog.get_logger(), name)

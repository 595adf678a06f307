"""A logger for modules that short commands import: structlog is imported with the first line that is logged. Pure."""

from typing import Any


class LazyLog:
    """Stands for `structlog.get_logger()`, whose import takes longer than `llmkube list` may."""

    def __getattr__(self, name: str) -> Any:
        """Return a method of the logger, such as `warning`."""
        import structlog  # noqa: PLC0415 - see above

        return getattr(structlog.get_logger(), name)

"""The cordon of a host: it serves nothing, and other hosts take over its services. Pure."""

import datetime
import json
from pathlib import Path

import attrs

from llmkube.k8s.wire.times import parse_timestamp, timestamp


@attrs.frozen
class Cordon:
    """A cordon by the host's owner; `until` is None if it lasts until it is removed."""

    until: datetime.datetime | None = None

    def is_active(self, now: datetime.datetime) -> bool:
        """Whether it applies at this time."""
        return self.until is None or now < self.until

    @property
    def end(self) -> str:
        """Its end, for people: `until 2026-01-01 16:00 UTC`."""
        if self.until is None:
            return "until `llmkube agent uncordon`"
        return f"until {self.until.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def cordon_path(state_dir: Path) -> Path:
    """Return the path of the file that holds the cordon; without a cordon there is no file."""
    return state_dir / "cordon.json"


def cordon_text(cordon: Cordon) -> str:
    """Return the text of the file."""
    return json.dumps({"until": None if cordon.until is None else timestamp(cordon.until)}) + "\n"


def parse_cordon(content: bytes) -> Cordon:
    """Return the cordon in a file.

    Raises:
        ValueError: The content is not that of a cordon file.
    """
    try:
        until_text = json.loads(content)["until"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ValueError(f"not a cordon: {exc}") from exc
    if until_text is None:
        return Cordon()
    until = parse_timestamp(until_text) if isinstance(until_text, str) else None
    if until is None:
        raise ValueError(f'until "{until_text}" is not a time; write it as 2026-01-01T16:00:00Z, or null')
    return Cordon(until)

"""A host that its owner has taken back for a while: it serves nothing, and other hosts do. Pure."""

import datetime
import json
from pathlib import Path

import attrs

from llmkube.k8s.wire.times import parse_timestamp, timestamp


@attrs.frozen
class Cordon:
    """The owner's word that the host shall serve nothing; `until` is None when only another word ends it."""

    until: datetime.datetime | None = None

    def is_active(self, now: datetime.datetime) -> bool:
        """Whether it counts at this moment."""
        return self.until is None or now < self.until

    @property
    def end(self) -> str:
        """When it ends, for people: `until 2026-01-01 16:00 UTC`."""
        if self.until is None:
            return "until `llmkube agent uncordon`"
        return f"until {self.until.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def cordon_path(state_dir: Path) -> Path:
    """Return where the owner's word is kept, so that it outlives the agent; there is no file without one."""
    return state_dir / "cordon.json"


def cordon_text(cordon: Cordon) -> str:
    """Return the file."""
    return json.dumps({"until": None if cordon.until is None else timestamp(cordon.until)}) + "\n"


def parse_cordon(content: bytes) -> Cordon:
    """Return what a file says.

    Raises:
        ValueError: It is none that `llmkube agent cordon` wrote.
    """
    try:
        until_text = json.loads(content)["until"]
    except (ValueError, KeyError, TypeError) as exc:
        raise ValueError(f"it is no cordon: {exc}") from exc
    if until_text is None:
        return Cordon()
    until = parse_timestamp(until_text) if isinstance(until_text, str) else None
    if until is None:
        raise ValueError(f'until is "{until_text}"; write a time as 2026-01-01T16:00:00Z, or null')
    return Cordon(until)

"""Failed starts in a row, counted on disk: launchd has no limit of its own, and starts a program for ever.

A start counts until it has gone well for a minute. A new boot begins anew: what was wrong may have been the machine.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

from llmkube.base.private_files import write_private

GONE_WELL_SECONDS: Final = 60.0
_FILE: Final = "failed-starts"


@attrs.frozen
class FailedStarts:
    """How often in a row a program has not started, in this boot, and why the last time.

    Attributes:
        boot: What tells this boot from others.
        count: Starts that have not gone well, so far.
        problem: One sentence; empty when a start just ended.
    """

    boot: str
    count: int = 0
    problem: str = ""


def failed_starts_path(state_dir: Path) -> Path:
    """Return where the count is; there is no file after a start that went well."""
    return state_dir / _FILE


def read_failed_starts(state_dir: Path, boot: str) -> FailedStarts:
    """Return the count; one of another boot, or a file that is none, counts as zero."""
    try:
        content = json.loads(failed_starts_path(state_dir).read_text("utf-8"))
        found = FailedStarts(str(content["boot"]), int(content["count"]), str(content["problem"]))
    except (OSError, ValueError, KeyError, TypeError):
        return FailedStarts(boot)
    return found if found.boot == boot else FailedStarts(boot)


def forget_failed_starts(state_dir: Path) -> None:
    """Begin to count anew."""
    failed_starts_path(state_dir).unlink(missing_ok=True)


@contextlib.contextmanager
def counted_start(state_dir: Path, boot: str) -> Iterator[None]:
    """Count the block as a failed start if it ends before `forget_failed_starts` is called, unless it ends well.

    Raises:
        OSError: The count cannot be written.
    """
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    begun = attrs.evolve(read_failed_starts(state_dir, boot), problem="")
    begun = attrs.evolve(begun, count=begun.count + 1)
    _write(state_dir, begun)
    try:
        yield
    except BaseException as exc:
        if failed_starts_path(state_dir).exists():
            _write(state_dir, attrs.evolve(begun, problem=str(exc)))
        raise
    forget_failed_starts(state_dir)


async def forget_once_it_goes_well(state_dir: Path) -> None:
    """Return when the program has run for a minute, which ends the count."""
    await trio.sleep(GONE_WELL_SECONDS)
    await trio.to_thread.run_sync(forget_failed_starts, state_dir)


def _write(state_dir: Path, starts: FailedStarts) -> None:
    write_private(failed_starts_path(state_dir), json.dumps(attrs.asdict(starts)), lasting=False)

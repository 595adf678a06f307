"""`llmkube agent cordon` and `uncordon`: the owner takes the Mac back for a while, whether an agent runs or not."""

import datetime
from pathlib import Path

import click
import trio

from llmkube.base.errors import UserError
from llmkube.base.private_files import write_private
from llmkube.base.times import utcnow
from llmkube.base.units import parse_duration
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.options import HELP, NumberRange, guarded
from llmkube.programs.state_dir import held_state_dir
from llmkube.programs.state_location import check_state_dir, local_state_dir
from llmkube.programs.state_lock import holder_of
from llmkube.supervisor.host.processes import OWNER_VARIABLE, marked
from llmkube.supervisor.nouns.cordon import Cordon, cordon_path, cordon_text, parse_cordon

POLL_SECONDS = 0.5
_SHORTEST_SECONDS, _LONGEST_SECONDS = 60.0, 366 * 86400.0

_state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path), metavar="DIR", help="Its state directory.  [LLMKUBE_STATE_DIR]"
)


@click.command("cordon", context_settings=HELP)
@click.option("--for", "duration", metavar="DURATION", help="When to serve again by itself: 90m, 2h, 1d.")
@_state_dir_option
@click.option(
    "--timeout", type=NumberRange(min=0), default=120.0, help="Seconds to wait until the memory is back. Default: 120."
)
@guarded
def cordon(duration: str | None, state_dir: Path | None, timeout: float) -> None:
    """Take this host back: requests in flight end, its engines too, and other hosts serve, until `uncordon` or --for.

    A new agent on this host keeps to it.
    """
    until = None if duration is None else _end(parse_duration(duration, field="--for"))
    folder = (state_dir or local_state_dir()).absolute()
    with held_state_dir(folder, "install.lock"):
        write_private(cordon_path(folder), cordon_text(said := Cordon(until)))
    trio.run(_wait_free, folder, timeout)
    click.echo(f"this host serves nothing {said.end}")


@click.command("uncordon", context_settings=HELP)
@_state_dir_option
@guarded
def uncordon(state_dir: Path | None) -> None:
    """Have this host serve again."""
    folder = (state_dir or local_state_dir()).absolute()
    check_state_dir(folder)
    cordon_path(folder).unlink(missing_ok=True)
    click.echo("this host serves again")


def cordon_sentence(folder: Path) -> str:
    """Return until when a host serves nothing; empty while it serves."""
    try:
        found = parse_cordon(cordon_path(folder).read_bytes())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as exc:
        return f"{cordon_path(folder)} cannot be read ({exc}): `llmkube agent uncordon` removes it"
    return f"serves nothing {found.end}" if found.holds(utcnow()) else ""


def _end(seconds: float) -> datetime.datetime:
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        raise UserError("it is a minute at least and a year at most; leave it out for no end", field="--for")
    return utcnow() + datetime.timedelta(seconds=seconds)


async def _wait_free(folder: Path, seconds: float) -> None:
    """Return when no engine runs.

    Raises:
        CommandError: An engine still runs after so many seconds, no agent is there to end it, or the host serves again.
    """
    deadline = trio.current_time() + (seconds if holder_of(folder) is not None else 0.0)
    while left := await trio.to_thread.run_sync(marked, OWNER_VARIABLE, str(folder)):
        count = f"{len(left)} process{'es' if len(left) > 1 else ''} of engines"
        if not cordon_sentence(folder):
            raise CommandError(f"this host serves again, and {count} run: the cordon is over", ExitCode.FAILED)
        if trio.current_time() >= deadline:
            if holder_of(folder) is not None:
                raise CommandError(f"{count} still run after {seconds:g} s", ExitCode.TIMED_OUT)
            pids = " ".join(str(each.pid) for each in left)
            raise CommandError(
                f"{count} still run, and no agent: start it, and it ends them, or end them by `kill {pids}`",
                ExitCode.FAILED,
            )
        await trio.sleep(POLL_SECONDS)

"""`llmkube reach`: whether an address answers from here, as the pod of `llmkube doctor --from-cluster` tries it."""

import errno
from pathlib import Path
from typing import Final

import click
import trio

from llmkube.base.errors import innermost
from llmkube.base.http.dial import dial
from llmkube.k8s.wire.termination_message import REACHED, TERMINATION_LOG
from llmkube.programs.fetch_job.volume import tell
from llmkube.programs.options import command

TRY_SECONDS: Final = 10.0
OTHER: Final = "another machine answers there"
_WORD_BYTES: Final = 256


@command("reach")
@click.argument("address")
@click.option("--word", required=True, help="The first word of the program that listens there.")
@click.option("--termination-log", type=click.Path(path_type=Path), default=TERMINATION_LOG, hidden=True)
def reach(address: str, word: str, termination_log: Path) -> None:
    """Connect to ADDRESS (HOST:PORT), and say what came of it: `ok`, or the error."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{address} is no HOST:PORT, such as 192.168.1.50:8080", param_hint="ADDRESS")
    result = trio.run(tried, host.strip("[]"), int(port), word)
    tell(termination_log, {"result": result})
    click.echo(result)


async def tried(host: str, port: int, word: str) -> str:
    """Return `ok` when the word came, else why not, by the error's name."""
    said = b""
    with trio.move_on_after(TRY_SECONDS) as trying:
        try:
            async with await dial(host, port) as stream:
                while b"\n" not in said and len(said) < _WORD_BYTES:
                    piece = await stream.receive_some(_WORD_BYTES)
                    if not piece:
                        break
                    said += piece
        except (OSError, trio.BrokenResourceError) as exc:
            return _name_of(exc)
    if trying.cancelled_caught:
        return f"ETIMEDOUT (no answer within {TRY_SECONDS:g} s)"
    return REACHED if said.partition(b"\n")[0].decode("utf-8", "replace") == word else OTHER


def _name_of(error: BaseException) -> str:
    """Return the name of the errno, which Trio hides behind one error for all addresses of a host."""
    number = getattr(error, "errno", None)
    cause = error.__cause__
    while number is None and cause is not None:
        inner = innermost(cause)
        number, cause = getattr(inner, "errno", None), inner.__cause__
    return errno.errorcode.get(number, str(error)) if number is not None else str(error) or type(error).__name__

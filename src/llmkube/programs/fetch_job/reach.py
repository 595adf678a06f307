"""`llmkube reach`: test a connection to an address, in the pod of `llmkube doctor --from-cluster`."""

import errno
from pathlib import Path
from typing import Final

import click
import trio

from llmkube.base.errors import first_leaf
from llmkube.base.http.dial import dial
from llmkube.k8s.wire.termination_message import REACHED, TERMINATION_LOG
from llmkube.programs.fetch_job.volume import write_result
from llmkube.programs.options import command

CONNECT_TIMEOUT_SECONDS: Final = 10.0
OTHER_PROGRAM: Final = "another machine answers there"
_WORD_BYTES: Final = 256


@command("reach")
@click.argument("address")
@click.option("--word", required=True, help="First line that the program there sends.")
@click.option("--termination-log", type=click.Path(path_type=Path), default=TERMINATION_LOG, hidden=True)
def reach(address: str, word: str, termination_log: Path) -> None:
    """Connect to ADDRESS (HOST:PORT) and print the result: `ok`, or the error."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(f"{address} is not HOST:PORT, such as 192.168.1.50:8080", param_hint="ADDRESS")
    result = trio.run(try_connect, host.strip("[]"), int(port), word)
    write_result(termination_log, {"result": result})
    click.echo(result)


async def try_connect(host: str, port: int, word: str) -> str:
    """Return `ok` if the expected line was received, or else the name of the error."""
    received = b""
    with trio.move_on_after(CONNECT_TIMEOUT_SECONDS) as scope:
        try:
            async with await dial(host, port) as stream:
                while b"\n" not in received and len(received) < _WORD_BYTES:
                    piece = await stream.receive_some(_WORD_BYTES)
                    if not piece:
                        break
                    received += piece
        except (OSError, trio.BrokenResourceError) as exc:
            return _errno_name(exc)
    if scope.cancelled_caught:
        return f"ETIMEDOUT (no answer within {CONNECT_TIMEOUT_SECONDS:g} s)"
    return REACHED if received.partition(b"\n")[0].decode("utf-8", "replace") == word else OTHER_PROGRAM


def _errno_name(error: BaseException) -> str:
    """Return the name of the errno, which Trio wraps in one error for all addresses of a host."""
    number = getattr(error, "errno", None)
    cause = error.__cause__
    while number is None and cause is not None:
        inner = first_leaf(cause)
        number, cause = getattr(inner, "errno", None), inner.__cause__
    return errno.errorcode.get(number, str(error)) if number is not None else str(error) or type(error).__name__

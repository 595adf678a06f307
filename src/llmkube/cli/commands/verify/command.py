"""`llmkube verify`: try the promises of `promises.toml` on this machine, and write a report."""

import getpass
import json
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Final

import click

from llmkube import __version__
from llmkube.base.package_data import read_table
from llmkube.cli.commands.verify import checks
from llmkube.cli.commands.verify.checks import NotApplicableError, require
from llmkube.programs.options import command

STEPS: Final = read_table(__package__, "promises")


@command("verify")
@click.option("--only", type=click.Choice(list(STEPS)), multiple=True, help="A step; repeatable. Default: all.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=".", help="Folder of the report.")
def verify(*, only: tuple[str, ...], out: Path) -> None:
    """Try what LLMKube promises of a Mac or a GPU on this machine, and write a report to send in.

    Takes a minute, changes nothing, and uses neither a running `llmkube up` nor its files. Writes llmkube-verify.md and
    llmkube-verify.json, without names of the machine, its user and its folders. Exits with 1 if a promise is broken.
    """
    rows = []
    for name in only or STEPS:
        rows.append(play(name, **STEPS[name]))
        click.echo("{verdict:<14}  {promise}: {observed}".format(**rows[-1]))
    machine = f"LLMKube {__version__}, {platform.platform()}, Python {platform.python_version()}"
    columns = ("step", "verdict", "promise", "done", "observed")
    cells = [columns, ["---"] * len(columns), *([row[each].replace("|", "\\|") for each in columns] for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    failed = sum(row["verdict"] == "fail" for row in rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "llmkube-verify.md").write_text(f"# llmkube verify\n\n{machine}\n\n{table}\n", "utf-8")
    (out / "llmkube-verify.json").write_text(json.dumps({"machine": machine, "steps": rows}, indent=2), "utf-8")
    click.echo(f"{failed} of {len(rows)} promises are broken; the report is {out / 'llmkube-verify.md'}")
    sys.exit(failed > 0)


def play(name: str, promise: str, system: str = "", doctor: str = "") -> dict[str, str]:
    """Check a promise and return its row of the report; any error is a broken promise.

    Args:
        name: The name of the check in `checks`, whose docstring says what is done.
        promise: The sentence.
        system: The only value of `sys.platform` for which it is made; "" for all.
        doctor: The line of doctor that is the check; "" for a function of `checks`.
    """
    check = partial(checks.doctor_line, doctor) if doctor else getattr(checks, name.replace("-", "_"))
    try:
        require(system in {"", sys.platform}, f"this system is {platform.system()}", NotApplicableError)
        verdict, seen = "pass", check()
    except NotApplicableError as reason:
        verdict, seen = "not applicable", str(reason)
    except Exception as error:  # noqa: BLE001 - any error is the content of the row
        verdict, seen = "fail", f"{type(error).__name__}: {error}"
    done = f"Read the line {doctor} of `llmkube doctor`." if doctor else str(check.__doc__)
    node = platform.node()
    for private, shown in ((str(Path.home()), "~"), (node, "HOST"), (node.partition(".")[0], "HOST")):
        seen = seen.replace(private, shown) if len(private) > 1 else seen
    observed = " ".join(seen.replace(f"/{getpass.getuser()}/", "/USER/").split())[:400]
    return {"step": name, "promise": promise, "done": done, "verdict": verdict, "observed": observed}

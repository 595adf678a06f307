"""One kubectl command, run against one server; its output with what may differ between two servers taken out."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
import trio
import yaml

COMMAND_SECONDS: Final = 90.0
UNTIL_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.2
REAP_SECONDS: Final = 5.0

_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
_LONG_TIME: Final = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z][a-z] \d{4} \d\d:\d\d:\d\d [+-]\d{4}"
_FILE_TIME: Final = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}"
_NORMAL: Final[tuple[tuple[str, str], ...]] = (
    (r"(?m)^[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [a-z_]+\.go:\d+\] ", "<log> "),
    (r"(?m)^<log> .*/(reflector|informerwatcher)\.go:.*\n", ""),  # whether a wait or its watch ends first
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<uid>"),
    (r"https://127\.0\.0\.1:\d+", "<server>"),
    (r"/(LIVE|MERGED)-\d+", r"/\1"),
    (r"kubectl-edit-\d+", "kubectl-edit"),
    (r'(resourceVersion\\?"?: ?\\?)"\d+(\\?)"', r'\1"<version>\2"'),
    (r"(Resource Version: +)\d+", r"\1<version>"),
    (r"\b10\.\d+\.\d+\.\d+\b", "<cluster-ip>"),
    (r"\b\d+[smhdy](\d+[smhd])?\b", "<age>"),
    (r"(?<=\S) {2,}", "  "),  # the width of a column is that of its widest cell
)
_FRESH: Final = (_TIME, _LONG_TIME, _FILE_TIME)
_CAUSES: Final = re.compile(r"(?m)(^\* .*\n){2,}")
"""A kube-apiserver lists what is wrong with a custom object in an order that changes from run to run."""

_OLD_YEAR: Final = re.compile(r"\b20[012][0-5]\b")


@attrs.frozen
class Row:
    """One command of the script.

    Attributes:
        command: The arguments as a shell would read them; `{ns}` is the script's namespace.
        stdin: Input of the command.
        editor: The KUBE_EDITOR of `edit`.
        meanwhile: Commands to run while this one runs, each after a line of output that holds its text.
        lines: End a command that would never end by itself after so many lines of output.
        until_ok: Repeat until it succeeds: for what a cluster takes a moment to do.
        view: The part of the output to compare, if not the whole.
        keep: Keep the output under this name: later commands and inputs may hold `%(name)s`.
        name: Tells apart rows with the same command.
    """

    command: str
    stdin: str = ""
    editor: str = ""
    meanwhile: tuple[tuple[str, str], ...] = ()
    lines: int = 0
    until_ok: bool = False
    view: Callable[[str], str] | None = None
    keep: str = ""
    name: str = ""

    @property
    def title(self) -> str:
        """Title of the row in a report: the command, and the name where two are the same."""
        return f"{self.command} [{self.name}]" if self.name else self.command


def normal(text: str) -> str:
    """Return a text without what two servers never share: times, ages, uids, versions, addresses, widths."""
    for pattern in _FRESH:
        text = re.sub(pattern, lambda found: found[0] if _OLD_YEAR.search(found[0]) else "<time>", text)
    for pattern, instead in _NORMAL:
        text = re.sub(pattern, instead, text)
    return _CAUSES.sub(lambda found: "".join(sorted(found[0].splitlines(keepends=True))), text)


@attrs.define(eq=False)
class Session:
    """One kubectl talking to one server, in a namespace of its own."""

    program: str
    home: Path
    namespace: str
    kept: dict[str, str] = attrs.Factory(dict)

    @classmethod
    def open(cls, program: str, kubeconfig: Path, home: Path, namespace: str) -> "Session":
        """Make a home with a kubeconfig whose namespace is the script's, and whose names are the same everywhere."""
        home.mkdir(parents=True, mode=0o700, exist_ok=True)
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        current = next(each for each in config["contexts"] if each["name"] == config["current-context"])
        current["context"]["namespace"] = namespace
        (home / "kubeconfig").write_text(yaml.safe_dump(config), encoding="utf-8")
        (home / "kubeconfig").chmod(0o600)
        return cls(program, home, namespace)

    async def run(self, row: Row) -> str:
        """Return the normal form of what the command printed: output, errors, exit code."""
        with trio.fail_after(COMMAND_SECONDS):
            if row.lines or row.meanwhile:
                text, status = await self._run_with_others(row)
            elif row.until_ok:
                text, status = await self._run_until_ok(row)
            else:
                text, status = await self._run(row.command, row.stdin, row.editor)
        if row.keep:
            self.kept[row.keep] = text.strip()
        text = normal(text.replace(str(self.home), "<home>"))
        return (row.view(text) if row.view is not None else text) + f"exit {status}\n"

    async def _run_until_ok(self, row: Row) -> tuple[str, int]:
        deadline = trio.current_time() + UNTIL_SECONDS
        while True:
            text, status = await self._run(row.command, row.stdin, row.editor)
            if status == 0 or trio.current_time() > deadline:
                return text, status
            await trio.sleep(POLL_SECONDS)

    async def _run(self, command: str, stdin: str = "", editor: str = "") -> tuple[str, int]:
        done = await trio.run_process(
            self._argv(command),
            stdin=self._filled(stdin).encode(),
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env=self._environ(editor),
            cwd=self.home,
        )
        errors = done.stderr.decode()
        return done.stdout.decode() + (f"--- errors\n{errors}" if errors else ""), done.returncode

    async def _run_with_others(self, row: Row) -> tuple[str, int]:
        """Run the row's command and, while its output continues, the others; output and errors are one stream."""
        process = await trio.lowlevel.open_process(
            self._argv(row.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environ(row.editor),
            cwd=self.home,
        )
        others = list(row.meanwhile)
        pending, seen = b"", []
        try:
            assert process.stdout is not None
            async for chunk in process.stdout:
                *complete, pending = (pending + chunk).split(b"\n")
                for line in map(bytes.decode, complete):
                    if not re.match(r"[IE]\d{4} ", line):  # -v=6 tells when it is waiting
                        seen.append(line)
                    if others and others[0][0] in line:
                        await self._run(others.pop(0)[1])
                if row.lines and len(seen) >= row.lines:
                    process.kill()
                    break
            status = 0 if row.lines else await process.wait()
        finally:
            process.kill()
            with trio.CancelScope(deadline=trio.current_time() + REAP_SECONDS, shield=True):
                await process.wait()
                await process.stdout.aclose()
        return "".join(f"{line}\n" for line in seen[: row.lines or None]), status

    def _argv(self, command: str) -> list[str]:
        return [self.program, *shlex.split(self._filled(command))]

    def _filled(self, text: str) -> str:
        text = text.replace("{ns}", self.namespace)
        for name, value in self.kept.items():
            text = text.replace(f"%({name})s", value)
        return text

    def _environ(self, editor: str) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
        home = str(self.home)
        ours = {"KUBECONFIG": f"{home}/kubeconfig", "HOME": home, "TMPDIR": home, "TZ": "UTC"}
        return {**kept, **ours, **({"KUBE_EDITOR": editor} if editor else {})}


@attrs.frozen
class Allowed:
    """A difference that is meant to be.

    Attributes:
        reason: Why a user would accept it.
        rows: A pattern that the row's title holds.
        text: A pattern; what it matches is left out of both outputs, but for its group if it has one.
    """

    reason: str
    rows: str
    text: str

    def applies(self, row: Row) -> bool:
        """Whether the row is one of those."""
        return re.search(self.rows, row.title) is not None

    def without(self, text: str) -> str:
        """Return the text without what may differ."""
        return re.sub(self.text, lambda found: found[1] if found.re.groups else "", text)

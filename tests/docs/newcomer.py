"""Type what the pages show into a terminal of 80 columns, from a fresh clone: `make newcomer`.

The last commit is cloned into an empty home and `make demo` is typed. Then every console block of README and
docs is typed in order, `llmkube up` in a terminal of its own. Each step is printed with its seconds; one that fails, or
does not show what the block shows below it, ends the script. Blocks that are marked `not run` are named.
"""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from docs.pages import ROOT, Block, blocks, name, pages

COLUMNS, ROWS = 80, 24
STEP_SECONDS = 300.0
_END = re.compile(r"\r?\n?@newcomer:(\d+)@ ")
_GATEWAY = re.compile(r"gateway +(http://\S+)")
_FREE_PORTS = {f"LLMKUBE_{each}_PORT": "0" for each in ("API", "GATEWAY", "PROBE")}


def consoles(page: Path) -> list[Block]:
    """Return the console blocks of a page."""
    return [block for block in blocks(page) if block.language == "console"]


def settle(script: str, gateway: str, state: Path, programs: Path) -> str:
    """Put in what a reader has in these places: his paths, his gateway's address."""
    for shown, meant in (
        (r"^(\S*/)?llmkube up( +#.*)?$", ": # runs in parallel to this script"),
        (r"~/\.local/share/llmkube/kubeconfig", str(state / "kubeconfig")),
        (r"http://127\.0\.0\.1:8080", gateway),
        (r"\.venv/bin/", f"{programs}/"),
    ):
        script = re.sub(shown, lambda _, meant=meant: meant, script, flags=re.MULTILINE)
    return script


@attrs.define(eq=False)
class Terminal:
    """A shell on a terminal, and what it has shown."""

    master: int
    shown: str = ""

    def types(self, command: str) -> None:
        """Type a command and Enter."""
        os.write(self.master, command.encode() + b"\n")

    def wait_for(self, pattern: re.Pattern[str], since: int = 0) -> re.Match[str]:
        """Return the first match in what has been shown since; a terminal that does not show it is a failure."""
        ends_at = time.monotonic() + STEP_SECONDS
        while (found := pattern.search(self.shown, since)) is None:
            if not select.select([self.master], [], [], max(0.0, ends_at - time.monotonic()))[0]:
                raise SystemExit(f"not shown within {STEP_SECONDS:.0f} s: {pattern.pattern}\n{self.shown[since:]}")
            self.shown += os.read(self.master, 65536).decode(errors="replace")
        return found

    def run(self, command: str) -> tuple[int, str]:
        """Type a command, and return its exit code and what it has shown."""
        since = len(self.shown)
        self.types(command)
        found = self.wait_for(_END, since)
        return int(found[1]), self.shown[since : found.start()]


@contextmanager
def open_terminal(folder: Path, env: dict[str, str]) -> Iterator[Terminal]:
    """Open a shell on a terminal of 80 columns; it and its programs are terminated when the block ends."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        shell_env = {**env, "PS1": "\n@newcomer:$?@ ", "PS2": "", "TERM": "xterm", "INPUTRC": os.devnull}
        os.execvpe("bash", ["bash", "--norc", "--noprofile"], shell_env)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    terminal = Terminal(master)
    try:
        terminal.wait_for(_END)
        terminal.run("bind 'set enable-bracketed-paste off'")
        yield terminal
    finally:
        # Ctrl-C ends `llmkube up` with its engines, or nothing; Enter has a shell prompt that was just about to.
        os.write(master, b"\x03\n")
        terminal.wait_for(_END, len(terminal.shown))
        terminal.types("exit")
        os.waitpid(pid, 0)
        os.close(master)


def missing(block: Block, shown: str) -> list[str]:
    """Return the lines of a block that are no commands, and that the terminal has not shown."""
    rest = block.text
    for command in block.commands:
        rest = rest.replace(f"$ {command}", "", 1)
    return [line for line in rest.splitlines() if line.strip() and line.strip() not in shown]


def step(what: str, begin: float) -> None:
    """Print a step with its seconds."""
    sys.stdout.write(f"{time.monotonic() - begin:7.1f} s  {what}\n")
    sys.stdout.flush()


def main() -> None:
    """Clone, install, type."""
    with tempfile.TemporaryDirectory(prefix="newcomer") as temporary:
        home, begin = Path(temporary), time.monotonic()
        clone, env = home / "llmkube", {"HOME": temporary, "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **_FREE_PORTS}
        kept = {
            key: value for key, value in os.environ.items() if re.match(r"(PIP|UV|SSL|HTTPS?|NO)_", key, re.IGNORECASE)
        }
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        step("git clone", begin)
        with open_terminal(clone, env | kept) as first, open_terminal(clone, env | kept) as second:
            begin = time.monotonic()
            code, shown = first.run("make demo")
            if code:
                raise SystemExit(shown)
            step("make demo", begin)
            (home / "models").mkdir()
            shutil.copy(clone / "src/llmkube/weights/builtin/demo.gguf", home / "models" / "my-model.gguf")
            begin = time.monotonic()
            second.types(".venv/bin/llmkube up")
            gateway = second.wait_for(_GATEWAY)[1]
            step("llmkube up", begin)
            for page in pages():
                if page == ROOT / "README.md" or page.is_relative_to(ROOT / "docs"):
                    type_page(page, first, gateway, home)
                if page == ROOT / "README.md":
                    (on_path,) = re.findall(r"`(export PATH=.*?)`", page.read_text(encoding="utf-8"))
                    first.run(on_path)


def type_page(page: Path, terminal: Terminal, gateway: str, home: Path) -> None:
    """Type the blocks of a page, or name those that are not run."""
    for block in consoles(page):
        if block.note:
            sys.stdout.write(f"{'':9}  {name(page)}: {block.commands[0].splitlines()[0]}: {block.note}\n")
            continue
        everything = ""
        for command in block.commands:
            begin = time.monotonic()
            typed = settle(command, gateway, home / ".local/share/llmkube", home / "llmkube/.venv/bin")
            code, shown = terminal.run(typed)
            everything += shown
            if code:
                raise SystemExit(f"{name(page)}: $ {command}\nended with {code}:\n{shown}")
            step(f"{name(page)}: $ {command.splitlines()[0]}", begin)
        if absent := missing(block, everything):
            raise SystemExit(f"{name(page)}: not shown: {absent}\n{everything}")


if __name__ == "__main__":
    main()

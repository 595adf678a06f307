"""Type what the pages show into a terminal of 80 columns, from a fresh clone: `make newcomer`.

The last commit is cloned, and `make demo` is typed in an empty home. A browser then opens the printed address and gets
an answer in the chat. The console blocks of README follow, then those of each tutorial in a home of its own, then those
of the other pages. Each step is printed with its seconds; one that fails, or does not show what the block shows below
it, ends the script. Blocks that are marked `not run` are named.
"""

import fcntl
import json
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
from e2e.client_packages import find_browser_driver
from security.chromium import INSTALL_HINT, find_chromium

COLUMNS, ROWS = 80, 24
STEP_SECONDS = 900.0
_END = re.compile(r"\r?\n?@newcomer:(\d+)@ ")
_PAGE = re.compile(r"^page +(http://\S+)/\r?$", re.MULTILINE)
_STOP = re.compile(r"^stop +(\S.*?)\r?$", re.MULTILINE)
ANSWER_SECONDS = 60.0
"""Limit for the first answer in a browser, from the end of `make demo`."""
_FREE_PORTS = {f"LLMKUBE_{each}_PORT": "0" for each in ("API", "GATEWAY", "PROBE")}


def consoles(page: Path) -> list[Block]:
    """Return the console blocks of a page."""
    return [block for block in blocks(page) if block.language == "console"]


def settle(script: str, gateway: str, programs: Path) -> str:
    """Put in what a reader has in these places: the gateway's address, the path of the programs."""
    for shown, meant in (
        (r"^(\S*/)?llmkube up( +#.*)?$", ": # runs in parallel to this script"),
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
        folder, begin = Path(temporary), time.monotonic()
        clone = folder / "llmkube"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        step("git clone", begin)
        readme = clone / "README.md"
        (on_path,) = re.findall(r"`(export PATH=.*?)`", readme.read_text(encoding="utf-8"))
        with open_home(folder / "home", clone) as terminal:
            begin = time.monotonic()
            code, shown = terminal.run("make demo")
            if code:
                raise SystemExit(shown)
            step("make demo", begin)
            address = _PAGE.findall(shown)[-1]
            ask_in_browser(address)
            type_page(ROOT / "README.md", terminal, clone, address)
            run_checked(terminal, _STOP.findall(shown)[-1])
        tutorials = [each for each in pages() if each.parent.name == "tutorials"]
        for tutorial in tutorials:
            with open_home(folder / tutorial.stem, clone) as terminal:
                terminal.run(on_path)
                begin = time.monotonic()
                type_page(tutorial, terminal, clone)
                step(f"{name(tutorial)}: in all", begin)
                if terminal.run("llmkube up status")[0] != 3:
                    raise SystemExit(f"{name(tutorial)}: llmkube up still runs at its end")
        with open_home(folder / "others", clone) as terminal:
            terminal.run(on_path)
            address = _PAGE.findall(run_checked(terminal, "llmkube up start"))[-1]
            for page in pages():
                if page.is_relative_to(ROOT / "docs") and page not in tutorials:
                    type_page(page, terminal, clone, address)
            run_checked(terminal, "llmkube up stop")


@contextmanager
def open_home(home: Path, clone: Path) -> Iterator[Terminal]:
    """Open a shell in the clone with a new home; `llmkube up` of this home is stopped when the block ends."""
    (home / "models").mkdir(parents=True)
    shutil.copy(clone / "src/llmkube/weights/builtin/demo.gguf", home / "models" / "my-model.gguf")
    kept = {key: value for key, value in os.environ.items() if re.match(r"(PIP|UV|SSL|HTTPS?|NO)_", key, re.IGNORECASE)}
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", **_FREE_PORTS, **kept}
    try:
        with open_terminal(clone, env) as terminal:
            yield terminal
    finally:
        if (program := clone / ".venv/bin/llmkube").exists():
            subprocess.run([program, "up", "stop"], env=env, capture_output=True, check=False)


def run_checked(terminal: Terminal, command: str) -> str:
    """Type a command that has to succeed, and return what it has shown."""
    code, shown = terminal.run(command)
    if code:
        raise SystemExit(f"$ {command}\nended with {code}:\n{shown}")
    return shown


def ask_in_browser(address: str) -> None:
    """Open the page's address and get an answer in the chat, in Debian's Chromium; report where there is none."""
    if (chromium := find_chromium()) is None:
        sys.stdout.write(f"{'':9}  first answer in a browser: {INSTALL_HINT}\n")
        return
    task = {"url": address, "chromium": chromium, "parts": ["first_answer"], "question": "What is LLMKube?"}
    command = [sys.executable, "-S", str(ROOT / "tests/e2e/page_browser.py"), json.dumps(task)]
    env = {**os.environ, "PYTHONPATH": str(find_browser_driver())}
    begin = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, check=True, text=True)
    if time.monotonic() - begin > ANSWER_SECONDS:
        raise SystemExit(f"no answer in the browser within {ANSWER_SECONDS:.0f} s")
    step(f"first answer in a browser: {json.loads(done.stdout)['answer'].splitlines()[0]}", begin)


def type_page(page: Path, terminal: Terminal, clone: Path, address: str = "") -> None:
    """Type the blocks of a page, or name those that are not run; `up start` prints a new address."""
    for block in consoles(page):
        if block.note:
            sys.stdout.write(f"{'':9}  {name(page)}: {block.commands[0].splitlines()[0]}: {block.note}\n")
            continue
        everything = ""
        for command in block.commands:
            begin = time.monotonic()
            code, shown = terminal.run(settle(command, address, clone / ".venv/bin"))
            everything += shown
            if code:
                raise SystemExit(f"{name(page)}: $ {command}\nended with {code}:\n{shown}")
            address = (_PAGE.findall(shown) or [address])[-1]
            step(f"{name(page)}: $ {command.splitlines()[0]}", begin)
        if absent := missing(block, everything):
            raise SystemExit(f"{name(page)}: not shown: {absent}\n{everything}")


if __name__ == "__main__":
    main()

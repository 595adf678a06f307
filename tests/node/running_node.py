"""The running node, as tests use it: commands in it and on the machines next to it, its programs, its wires."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import psutil
import trio

from envtest.build import assets_dir
from node.wiring import STATE


@attrs.frozen
class Node:
    """A node that is ready.

    Attributes:
        keeper: The process that keeps it.
        pid: Its process 1, as this machine counts.
        machines: Process 1 of each machine on its wire, as the node counts.
        kubeconfig: Of an administrator; the API server is on the network that the tests are on.
        start_seconds: Duration of the start.
    """

    keeper: int
    pid: int
    machines: Mapping[str, int]
    kubeconfig: Path
    start_seconds: float

    @property
    def state(self) -> Path:
        """The node's state folder, seen from here."""
        return Path(f"/proc/{self.pid}/root{STATE}")

    def inside(self, *command: str, machine: str = "") -> list[str]:
        """Return a command that runs another one in the node's namespaces, or on a machine next to it."""
        spaces = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")
        entered = ["nsenter", "--target", str(self.pid), *spaces]
        if machine:
            entered += ["nsenter", "--target", str(self.machines[machine]), "--mount", "--net", "--pid", "--uts"]
        return [*entered, *command]

    async def run(self, *command: str, machine: str = "", check: bool = True) -> str:
        """Run a command in the node, or on a machine, and return what it printed; errors as well if it failed."""
        return await output(self.inside(*command, machine=machine), check=check)

    async def kubectl(self, *words: str, check: bool = True, stdin: str = "") -> str:
        """Run kubectl as administrator, and return what it printed; errors as well if it failed."""
        kubectl = str(assets_dir() / "kubectl")
        return await output([kubectl, "--kubeconfig", str(self.kubeconfig), *words], check=check, stdin=stdin)

    async def apply(self, namespace: str, *objects: Mapping[str, Any]) -> None:
        """Have the API server take objects, in a namespace unless they are of none."""
        await self.kubectl("apply", "-n", namespace, "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    async def execute(self, namespace: str, pod: str, *command: str, check: bool = True) -> str:
        """Run a command in a pod, and return what it printed."""
        return await self.kubectl("exec", "-n", namespace, pod, "--", *command, check=check)

    def descendants(self) -> list[psutil.Process]:
        """Return every process of the node, and those that this test run has started on the machines next to it."""
        # who enters a namespace stays the child of who sent it there; the keeper may be our child, or our parent's
        here = (psutil.Process(self.keeper), psutil.Process())
        found = {each.pid: each for parent in here for each in parent.children(recursive=True)}
        return list(found.values())

    def processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of a program, by its file's name, wherever in the node they are."""
        return [each for each in self.descendants() if _name(each) == name]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the one process of a program of the node, which starts it again."""
        (process,) = self.processes(name)
        process.send_signal(number)

    def kill_in_pods(self, *words: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the one process whose command line has these words in it, one after the other."""
        text = " ".join(words)
        (process,) = (each for each in self.descendants() if text in line_of(each))
        process.send_signal(number)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Stop a program with SIGSTOP for the duration of the block."""
        self.kill(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.kill(name, signal.SIGCONT)

    async def wire(self, machine: str, state: str) -> None:
        """Pull out a machine's cable (`down`), or plug it in (`up`)."""
        await self.run("ip", "link", "set", machine, state)


def _name(process: psutil.Process) -> str:
    try:
        return Path(process.cmdline()[0]).name
    except (IndexError, psutil.Error):
        return ""


def line_of(process: psutil.Process) -> str:
    """Return a process's command line; empty when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


async def output(command: Sequence[str], *, check: bool = True, stdin: str = "") -> str:
    """Run a command and return what it printed; one that fails is an AssertionError with its words.

    Stderr of a command that succeeds is left out: kubectl complains of APIs that other tests delete.
    """
    done = await trio.run_process(
        command, stdin=stdin.encode(), capture_stdout=True, capture_stderr=True, check=False, env=os.environ
    )
    text = (done.stdout + (done.stderr if done.returncode else b"")).decode(errors="replace")
    assert not check or done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{text}"
    return text

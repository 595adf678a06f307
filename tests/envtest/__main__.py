"""Run a real control plane until stdin ends or a signal comes, or for the time of one command.

    python -m envtest                          prints {"kubeconfig": ...} when it is ready, and runs until stdin ends
    python -m envtest pytest tests/contracts   runs a command with LLMKUBE_TEST_KUBECONFIG set, and exits as it does

The parent that dies takes the pipe with it: nothing runs on after a killed test run.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from envtest.build import ESSENTIAL, assets_dir
from envtest.plane import ControlPlane, ProgramError, open_control_plane
from go_programs import missing

MEBIBYTE = 1024 * 1024
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def _run(work_dir: Path, assets: Path, controllers: bool, flags: Sequence[str], command: Sequence[str]) -> int:
    status = 0
    start = time.monotonic()
    async with (
        _ends_by_signal() as signals,
        open_control_plane(assets, work_dir, controllers=controllers, api_server_flags=flags) as plane,
    ):
        _log(f"ready after {time.monotonic() - start:.1f} s, {_memory(plane)}; logs in {work_dir}")
        if command:
            environ = {**os.environ, "LLMKUBE_TEST_KUBECONFIG": str(plane.kubeconfig)}
            status = (await trio.run_process(command, stdin=None, env=environ, check=False)).returncode
        else:
            sys.stdout.write(json.dumps({"kubeconfig": str(plane.kubeconfig), "server": plane.server}) + "\n")
            sys.stdout.flush()
            await _wait_end_of_stdin()
        _log(f"stopping, {_memory(plane)}")
    _log(f"stopped after {time.monotonic() - start:.1f} s")
    return 128 + signals[0] if signals else status


@asynccontextmanager
async def _ends_by_signal() -> AsyncGenerator[Sequence[int], None]:
    """Cancel the body at the first signal of the usual kind, and keep its number: the programs stop in their order."""
    caught: list[int] = []
    async with trio.open_nursery() as nursery:

        async def listen(task_status: trio.TaskStatus[None]) -> None:
            with trio.open_signal_receiver(*SIGNALS) as received:
                task_status.started()
                caught.append(await anext(received))
                nursery.cancel_scope.cancel()

        await nursery.start(listen)
        yield caught
        nursery.cancel_scope.cancel()


async def _wait_end_of_stdin() -> None:
    """Return at the end of stdin; on a terminal, Ctrl-D or a signal ends it."""
    descriptor = sys.stdin.fileno()
    with contextlib.suppress(PermissionError):  # epoll knows no files; /dev/null and the like have ended already
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            if not os.read(descriptor, 4096):
                return


def _memory(plane: ControlPlane) -> str:
    return ", ".join(f"{name} {held // MEBIBYTE} MiB" for name, held in plane.resident_bytes.items())


def _log(text: str) -> None:
    sys.stderr.write(f"envtest: {text}\n")


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m envtest", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work-dir", type=Path, help="keep data, keys and logs here; else a folder that is removed")
    parser.add_argument("--no-controllers", action="store_true", help="without kube-controller-manager")
    parser.add_argument("--api-server-flag", action="append", default=[], help="a further flag of kube-apiserver")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="run this, then stop")
    arguments = parser.parse_args()
    assets = assets_dir()
    wanted = (*ESSENTIAL, *(() if arguments.no_controllers else ("kube-controller-manager",)))
    lacking = missing(assets, wanted)
    if lacking:
        _log(f"no {', '.join(lacking)} in {assets}: `make envtest` builds them")
        return 1
    with contextlib.ExitStack() as stack:
        work_dir = arguments.work_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="envtest-")))
        try:
            return trio.run(
                _run, work_dir, assets, not arguments.no_controllers, arguments.api_server_flag, arguments.command
            )
        except* (ProgramError, subprocess.SubprocessError, OSError) as errors:
            for error in errors.exceptions:
                _log(str(error))
    return 1


if __name__ == "__main__":
    sys.exit(main())

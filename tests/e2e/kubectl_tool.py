"""An unmodified kubectl, run against one server."""

import os
import shutil
from functools import partial
from pathlib import Path
from subprocess import STDOUT

import pytest
import trio


def needs_kubectl(program: str = "kubectl") -> str:
    """Return the program's path; without it, skip the test, or fail it in CI."""
    found = shutil.which(program)
    if found is None:
        text = f"this test needs kubectl, and there is none at {program!r}: install it or put it on PATH"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(text)
    return found


class Kubectl:
    """Run one kubectl against one server; a failure is an assertion with its output."""

    def __init__(self, program: str, kubeconfig: Path, home: Path):
        self.program, self.home = program, home
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}

    async def run(self, *args: str, stdin: str = "", code: int = 0) -> str:
        with trio.fail_after(60):
            run = partial(trio.run_process, capture_stdout=True, stderr=STDOUT, check=False, env=self.env)
            done = await run([self.program, *args], stdin=stdin.encode())
        output = done.stdout.decode()
        assert done.returncode == code, f"kubectl {' '.join(args)}: exit {done.returncode}\n{output}"
        return output

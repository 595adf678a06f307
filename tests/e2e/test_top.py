"""`llmkube top` on a terminal: keys, and a terminal that is left as it was."""

import fcntl
import os
import signal
import sys
import termios
from functools import partial

import pytest
import trio

from e2e.up_process import environment, open_machine

pytestmark = pytest.mark.e2e

SCREEN, BACK, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"  # xterm's alternate screen


async def test_keys_work_and_the_terminal_is_restored(tmp_path):
    """After `q`, Ctrl-C, SIGTERM and a server that is gone, the shell has its screen, its cursor and its echo again."""
    kubeconfig = tmp_path / "state" / "kubeconfig"
    env = environment(tmp_path) | {"KUBECONFIG": str(kubeconfig), "TERM": "xterm-256color", "COLUMNS": "100"}
    command = [sys.executable, "-m", "llmkube", "top", "--interval", "0.1"]
    async with open_machine(tmp_path) as (up, run):
        assert (await run("deploy", "demo", "--source", "builtin://demo", "--context-size", "512"))[0] == 0
        for act, code in ((b"mj\x1b[Aq", 0), (b"\x03", 130), (signal.SIGTERM, -signal.SIGTERM), (None, 1)):
            leader, follower = os.openpty()
            before = termios.tcgetattr(follower)
            terminal, drawn = trio.lowlevel.FdStream(leader), b""
            async with terminal, trio.open_nursery() as nursery:
                streams = dict.fromkeys(("stdin", "stdout", "stderr"), follower)
                start = partial(trio.run_process, command, env=env, check=False, start_new_session=True, **streams)
                process = await nursery.start(partial(start, preexec_fn=partial(_take_terminal, follower)))
                while b"> demo" not in drawn:
                    drawn += await terminal.receive_some()
                if isinstance(act, bytes):
                    await terminal.send_all(act)
                elif act is not None:
                    process.send_signal(act)
                else:
                    up.process.kill()
                while BACK not in drawn:
                    drawn += await terminal.receive_some()
                assert await process.wait() == code, drawn
                assert drawn.count(SCREEN) == drawn.count(BACK) == 1
                assert SHOW_CURSOR in drawn
                assert termios.tcgetattr(follower) == before
                os.close(follower)


def _take_terminal(terminal):
    """Make a terminal the one of this session: Ctrl-C then interrupts its program."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

"""Everyday commands on a terminal of 80 columns with NO_COLOR, and into a pipe: no broken row, no escape."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from functools import partial

import pytest
import trio

from e2e.terminal import open_terminal
from e2e.up_process import FREE_PORTS, environment, open_program, open_up, run_program

pytestmark = pytest.mark.e2e

COLUMNS = 80
LONG = "a-model-with-a-name-as-long-as-people-give-to-models-they-fine-tune"
QUESTION = "What is LLMKube?"

DEPLOY = ("deploy", "demo", "--source", "builtin://demo", "--context-size", "512")
MISSING = "/home/nobody/models/of/mine/that/are/not/there.gguf"

LOOK = (
    DEPLOY,
    ("deploy", LONG, "--source", "builtin://demo", "--context-size", "512"),
    ("list",),
    ("list", "-o", "wide"),
    ("list", "-A", "-o", "wide"),
    ("ps",),
    ("status", "demo"),
    ("status", "demo", "-o", "wide"),
    ("status", LONG),
    ("status", f"model/{LONG}"),
    ("queue",),
    ("top", "--once"),
    ("logs", "demo", "--tail", "1"),
    ("catalog", "list"),
    ("catalog", "info", "llama-3.1-8b"),
    ("fit", "builtin://demo", "--memory", "64Mi"),
    ("port-forward", "demo"),
    ("port-forward", LONG),
    ("port-forward", "nobody"),
    ("port-forward", "demo", "70000"),
)
CHANGE = (
    DEPLOY,
    ("chat", "demo", QUESTION),
    ("run", "demo", QUESTION),
    ("pull", "builtin://demo"),
    ("deploy", "broken", "--source", MISSING, "--accelerator", "cpu"),
    ("list", "isvc"),
    ("list", "isvc", "-o", "wide"),
    ("status", "broken"),
    ("restart", "demo"),
    ("scale", "demo", "0"),
    ("delete", "demo", "--with-model"),
    ("status", "nobody"),
    ("dploy",),
)

UNTIL = {("port-forward", "demo"): "Forwarding ", ("port-forward", LONG): "Forwarding "}
"""First output of the commands that run until Ctrl-C."""

FREE = {"logs", "chat", "run"}
"""Commands that show the output of a program or a model, of any width."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


async def on_terminal(home, kubeconfig, command):
    """Return what a command draws on a terminal of 80 columns with NO_COLOR, including escapes.

    A command that runs until Ctrl-C gets it after its first output.
    """
    async with open_terminal() as (end, drawn):
        try:
            fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
            env = environment(home) | {"KUBECONFIG": str(kubeconfig), "NO_COLOR": "1", "TERM": "xterm-256color"}
            del env["COLUMNS"]
            argv = [sys.executable, "-m", "llmkube", *command]
            streams = dict.fromkeys(("stdout", "stderr"), end)
            run = partial(trio.run_process, argv, stdin=subprocess.DEVNULL, env=env, check=False, **streams)
            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    process = await nursery.start(run)
                    if command in UNTIL:
                        await wait_drawn(drawn, UNTIL[command])
                        process.send_signal(signal.SIGINT)
        finally:
            os.close(end)
    return drawn.decode()


async def wait_drawn(drawn, words):
    while words not in " ".join(_ESCAPE.sub("", drawn.decode(errors="replace")).split()):  # noqa: ASYNC110
        await trio.sleep(0.05)


async def into_a_pipe(home, kubeconfig, command):
    """Return what a command writes into a pipe; it gets Ctrl-C in the same way."""
    if command not in UNTIL:
        _, out, err = await run_program(home, *command, kubeconfig=kubeconfig)
        return out + err
    async with open_program(home, *command, kubeconfig=kubeconfig) as program:
        await program.wait_for("out", UNTIL[command])
        program.process.send_signal(signal.SIGINT)
        await program.process.wait()
    return program.out + program.err


def too_wide(drawn):
    """Return the lines that the terminal has to wrap, except single words, such as a path."""
    lines = _ESCAPE.sub("", drawn).replace("\r", "\n").split("\n")
    return [line for line in lines if len(line) > COLUMNS and len(line.split()) > 1]


def words_of(written):
    """Return the words about objects and their engines, without ages, which change."""
    return {word for word in written.split() if re.search(r"http|gguf|xllamacpp|builtin|InferenceService|model", word)}


@pytest.mark.ci
@pytest.mark.parametrize("walk", [LOOK, CHANGE], ids=["look", "change"])
async def test_a_day_fits_on_a_narrow_terminal_and_into_a_pipe(tmp_path, walk):
    """No table, status or sentence is wider than the terminal; a pipe gets no escape, and NO_COLOR no style."""
    home = tmp_path / "home"
    home.mkdir()
    kubeconfig = tmp_path / "state" / "kubeconfig"
    wrong = {}
    async with open_up(tmp_path, "--state-dir", str(tmp_path / "state"), *FREE_PORTS) as up:
        await up.urls()
        for command in walk:
            written = await into_a_pipe(home, kubeconfig, command)
            if "\x1b" in written or "\r" in written:
                wrong[command] = "an escape in a pipe", written
            if LONG in command[1:2] and command[0] == "deploy":
                continue  # it prints commands to paste, which are not wrapped
            drawn = await on_terminal(home, kubeconfig, command)
            if _STYLE.search(drawn):
                wrong[command] = "a style despite NO_COLOR", drawn
            if command[0] not in FREE and (wide := too_wide(drawn)):
                wrong[command] = "wider than the terminal", wide
            if command[-1] == "wide" and (lacking := words_of(written) - words_of(drawn)):
                wrong[command] = "less than in a pipe", lacking
    assert not wrong

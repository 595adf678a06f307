"""The owner's word on disk: what `cordon` writes, `status` and the agent read, and `uncordon` takes back."""

import datetime
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
import trio
from click.testing import CliRunner

from llmkube.cli.commands.programs.background.cordon_commands import _wait_free, cordon, cordon_sentence, uncordon
from llmkube.programs.failures import CommandError, ExitCode
from llmkube.programs.state_lock import ENGINES, held
from llmkube.supervisor.host.processes import OWNER_VARIABLE
from llmkube.supervisor.host_cordon import CordonFile
from llmkube.supervisor.nouns.cordon import Cordon, cordon_path, cordon_text


def run(command, folder, *words):
    return CliRunner().invoke(command, ["--state-dir", str(folder), *words])


def test_what_is_typed_is_what_the_agent_reads(tmp_path):
    """With an end and without; `uncordon` takes it back, also when nothing was said."""
    folder = tmp_path / "state"
    read = CordonFile(cordon_path(folder))
    assert run(cordon, folder).exit_code == 0
    assert read() == Cordon()
    assert run(cordon, folder, "--for", "2h").exit_code == 0
    now = datetime.datetime.now(datetime.UTC)
    assert read().holds(now + datetime.timedelta(minutes=110))
    assert not read().holds(now + datetime.timedelta(minutes=130))
    assert cordon_sentence(folder) == f"serves nothing {read().end}"
    for _ in range(2):
        assert run(uncordon, folder).exit_code == 0
        assert read() is None
    assert cordon_sentence(folder) == ""


@pytest.mark.parametrize("words", ["0", "3s", "59s", "-1h", "1000000h", "2x", "soon", "9999d", "nan", ""])
def test_a_time_that_is_none_changes_nothing(tmp_path, words):
    """The sentence names the flag."""
    done = run(cordon, tmp_path / "state", "--for", words)
    assert done.exit_code != 0
    assert "--for" in str(done.output) + str(done.exception)
    assert not cordon_path(tmp_path / "state").exists()


def test_the_shortest_time_is_one_in_which_an_agent_can_end_its_engines(tmp_path):
    """A cordon that is over before the agent has looked would be a word without effect."""
    assert run(cordon, tmp_path, "--for", "60s").exit_code == 0


@contextmanager
def engine_of(folder):
    """A process that an agent of this folder could have left."""
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    environ = os.environ | {OWNER_VARIABLE: str(folder)}
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_engines_that_nobody_ends_are_told(tmp_path):
    """Without an agent the command does not say that the memory is back while an engine of a killed one holds it."""
    with engine_of(tmp_path) as process:
        done = run(cordon, tmp_path)
    assert done.exit_code == ExitCode.FAILED
    assert "1 process of engines still run, and no agent" in done.output
    assert f"kill {process.pid}" in done.output
    assert "serves nothing" in cordon_sentence(tmp_path)
    assert run(cordon, tmp_path).exit_code == 0


@pytest.mark.parametrize("over", ["", cordon_text(Cordon(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)))])
async def test_a_cordon_that_has_ended_is_not_waited_for(tmp_path, over):
    """Its engines stay: `uncordon` was typed elsewhere meanwhile, or the time is over."""
    if over:
        cordon_path(tmp_path).write_text(over)
    with (
        engine_of(tmp_path),
        held(tmp_path / ENGINES),
        trio.fail_after(60),
        pytest.raises(CommandError, match="this host serves again, and 1 process of engines run"),
    ):
        await _wait_free(tmp_path, 600)


async def test_engines_that_outlast_the_timeout_are_told(tmp_path):
    """With the code for it."""
    cordon_path(tmp_path).write_text(cordon_text(Cordon()))
    with (
        engine_of(tmp_path),
        held(tmp_path / ENGINES),
        pytest.raises(CommandError, match=r"still run after 0\.1 s") as told,
    ):
        await _wait_free(tmp_path, 0.1)
    assert told.value.exit_code == ExitCode.TIMED_OUT


def test_a_file_that_is_no_cordon_is_told(tmp_path):
    """`status` names the file, and what removes it."""
    cordon_path(tmp_path).write_text('{"until": "noon"}')
    assert "`llmkube agent uncordon` removes it" in cordon_sentence(tmp_path)

"""Failed starts in a row are counted, and end the trying."""

import contextlib

import pytest
import trio
from click.testing import CliRunner

from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.background.start_limit import (
    FailedStarts,
    counted_start,
    failed_starts_path,
    forget_once_it_goes_well,
    read_failed_starts,
)
from llmkube.cli.main import cli


def fail(folder, boot="one", why="no llama-server"):
    with pytest.raises(UserError), counted_start(folder, boot):
        raise UserError(why)


def test_failures_add_up_and_a_good_end_forgets_them(tmp_path):
    """The reason of the last one is kept for `status`."""
    fail(tmp_path)
    fail(tmp_path, why="no kubeconfig")
    assert read_failed_starts(tmp_path, "one") == FailedStarts("one", 2, "no kubeconfig")
    with counted_start(tmp_path, "one"):
        pass
    assert read_failed_starts(tmp_path, "one").count == 0


def test_a_killed_start_counts(tmp_path):
    """The count is written before anything is tried, so that a SIGKILL is not forgotten."""
    seen = []
    with contextlib.suppress(KeyboardInterrupt), counted_start(tmp_path, "one"):
        seen.append(read_failed_starts(tmp_path, "one").count)
        raise KeyboardInterrupt
    assert seen == [1]
    assert read_failed_starts(tmp_path, "one").count == 1


def test_a_new_boot_begins_anew(tmp_path):
    """The machine may have been what was wrong; and a file that is none counts for nothing."""
    fail(tmp_path)
    assert read_failed_starts(tmp_path, "two").count == 0
    failed_starts_path(tmp_path).write_text("{")
    assert read_failed_starts(tmp_path, "one").count == 0


async def test_a_minute_of_service_forgets(tmp_path, autojump_clock):
    """A crash a day later is a first one."""
    fail(tmp_path)
    await forget_once_it_goes_well(tmp_path)
    assert trio.current_time() >= 60
    assert not failed_starts_path(tmp_path).exists()
    with contextlib.suppress(UserError), counted_start(tmp_path, "one"):
        failed_starts_path(tmp_path).unlink()
        raise UserError("after a day")
    assert not failed_starts_path(tmp_path).exists()


def test_the_agent_gives_up_with_0_after_its_limit(tmp_path):
    """Launchd starts again what ends otherwise, for ever; without a limit each start says what is wrong."""
    state = tmp_path / "state"
    env = {"HOME": str(tmp_path), "NO_COLOR": "1"}
    args = ["agent", f"--state-dir={state}", "--llama-server=/nowhere/llama-server", "--start-limit=2"]
    config = tmp_path / "kubeconfig"
    config.write_text(
        "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "contexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n"
        "users: [{name: a, user: {token: x}}]\n"
    )
    args.append(f"--kubeconfig={config}")
    for _ in range(2):
        done = CliRunner().invoke(cli, args, env=env)
        assert (done.exit_code, "/nowhere/llama-server" in done.output) == (1, True), done.output
    given_up = CliRunner().invoke(cli, args, env=env)
    assert given_up.exit_code == 0
    assert "does not try again" in given_up.output
    assert "/nowhere/llama-server" in given_up.output
    assert "llmkube agent start" in given_up.output

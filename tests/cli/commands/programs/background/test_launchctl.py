"""Jobs are loaded and unloaded although launchctl does not wait."""

import pytest
import trio

from cli.commands.programs.background.launchd_model import LaunchdModel
from llmkube.base.errors import UserError
from llmkube.cli.commands.programs.background.launchctl import Launchd, parse_job_state

LABEL = "com.llmkube.metal-agent"

RUNNING = """\
gui/501/com.llmkube.metal-agent = {
	active count = 1
	path = /Users/ada/Library/LaunchAgents/com.llmkube.metal-agent.plist
	type = LaunchAgent
	state = running

	program = /opt/venv/bin/python
	runs = 3
	pid = 812
	immediate reason = semaphore
	last exit code = 78: EX_CONFIG
}
"""


def job(model, *, domain="gui/501", exit_seconds=90.0):
    return Launchd(call=model.call, domain=domain, label=LABEL, exit_seconds=exit_seconds)


def test_what_launchd_prints_of_a_job():
    """Pid, runs and last exit are read; missing ones are empty."""
    state = parse_job_state(RUNNING)
    assert (state.pid, state.runs, state.last_exit) == (812, 3, "78: EX_CONFIG")
    state = parse_job_state("x = {\n\tstate = spawn scheduled\n\truns = 9\n\tlast exit code = (never exited)\n}")
    assert (state.pid, state.runs, state.last_exit) == (None, 9, "")
    assert parse_job_state("").runs == 0


async def test_a_reinstall_waits_until_the_old_job_has_ended(autojump_clock):
    """`bootout` returns at once; the new job is loaded only after the old one is gone."""
    model = LaunchdModel(end_seconds=70.0, loaded=True)
    await job(model).load("/x/new.plist")
    assert (model.loaded, model.file, model.ends_at) == (True, "new.plist", None)
    assert trio.current_time() >= 70.0
    assert model.calls.index("bootstrap") > model.calls.index("bootout")
    assert model.calls.count("bootstrap") == 1


async def test_a_job_that_a_login_loads_meanwhile_gives_way(autojump_clock):
    """A login loads the old file between the check and `bootstrap`; the new file replaces it."""
    model = LaunchdModel(end_seconds=1.0)
    real = model.call
    raced = []

    async def call(words):
        if words[0] == "bootstrap" and not raced:
            raced.append(await real(["bootstrap", "gui/501", "/x/old.plist"]))
        return await real(words)

    await Launchd(call=call, domain="gui/501", label=LABEL, exit_seconds=90).load("/x/new.plist")
    assert model.file == "new.plist"


async def test_without_a_login_the_error_has_the_fix(autojump_clock):
    """Without a login `bootstrap` always fails with 5."""
    with pytest.raises(UserError, match=r"5: Input/output error.*logged in at this Mac's screen.*--daemon"):
        await job(LaunchdModel(session=False)).load("/x/new.plist")
    with pytest.raises(UserError) as caught:
        await job(LaunchdModel(session=False), domain="system").load("/x/new.plist")
    assert "--daemon" not in str(caught.value)


async def test_a_job_that_never_ends_is_reported(autojump_clock):
    """The error comes 30 s after launchd's own `ExitTimeOut`, and names the job."""
    with pytest.raises(UserError, match=f"gui/501/{LABEL} not unloaded within 120 s"):
        await job(LaunchdModel(end_seconds=1e9, loaded=True)).unload()


async def test_unloaded_job_is_not_booted_out(autojump_clock):
    model = LaunchdModel()
    await job(model).unload()
    assert model.calls == ["print"]

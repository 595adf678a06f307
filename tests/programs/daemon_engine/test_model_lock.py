"""Locks of models, with real files and real processes."""

import os
import signal
import stat
import subprocess
import sys
import threading

import pytest
import trio

from llmkube.programs.daemon_engine import model_lock
from llmkube.programs.daemon_engine.model_lock import ModelLockError, lock_opener

MODEL = "http://127.0.0.1:8000 /Users/me/models/tiny"

HOLD = """
import sys, trio
from llmkube.programs.daemon_engine.model_lock import lock_opener
async def hold():
    async with lock_opener(sys.argv[1])(sys.argv[2]) as lock:
        await lock.share()
        print("shared", flush=True)
        await trio.sleep_forever()
trio.run(hold)
"""


async def test_only_the_last_user_of_a_model_may_unload_it(tmp_path):
    """As long as two fronts use a model, neither unloads it; when one ends, the other one may."""
    open_lock = lock_opener(str(tmp_path))
    async with open_lock(MODEL) as first:
        await first.share()
        async with open_lock(MODEL) as second, open_lock("another") as other:
            await second.share()
            await other.share()
            assert not await first.exclusive()
            assert await second.exclusive()
            await second.clear()
        assert await first.exclusive()
        assert not await first.has_leftover()


async def test_a_new_user_waits_until_the_unload_is_done(tmp_path):
    open_lock = lock_opener(str(tmp_path))
    async with open_lock(MODEL) as late, trio.open_nursery() as nursery:
        async with open_lock(MODEL) as ends:
            assert await ends.exclusive()
            nursery.start_soon(late.share)
            await trio.sleep(0.5)
            assert len(nursery.child_tasks) == 1
        with trio.fail_after(60):
            while nursery.child_tasks:  # noqa: ASYNC110
                await trio.sleep(0.02)
        async with open_lock(MODEL) as another:
            assert not await another.exclusive()


async def test_a_killed_process_leaves_its_model_marked(tmp_path):
    """Only after its end, and until the model is unloaded."""
    argv = [sys.executable, "-c", HOLD, str(tmp_path), MODEL]
    process = await trio.to_thread.run_sync(lambda: subprocess.Popen(argv, stdout=subprocess.PIPE))
    open_lock = lock_opener(str(tmp_path))
    try:
        assert await trio.to_thread.run_sync(process.stdout.readline) == b"shared\n"
        async with open_lock(MODEL) as lock:
            assert not await lock.has_leftover()
            process.send_signal(signal.SIGKILL)
            await trio.to_thread.run_sync(process.wait)
            assert await lock.has_leftover()
            await lock.clear()
            assert not await lock.has_leftover()
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


async def test_the_lock_file_is_private_and_its_name_does_not_show_the_model(tmp_path):
    async with lock_opener(str(tmp_path))(MODEL) as lock:
        await lock.share()
    (path,) = (tmp_path / "daemon-models").iterdir()
    assert "models" not in path.name
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]


@pytest.mark.parametrize(("state_dir", "model"), [("", MODEL), ("/nowhere", "")])
async def test_a_model_with_a_single_user_has_no_lock_file(state_dir, model):
    """For a front without an agent, and for a server that ends with its front."""
    async with lock_opener(state_dir)(model) as lock:
        await lock.share()
        assert await lock.exclusive()
        assert not await lock.has_leftover()
        await lock.clear()


async def test_an_unusable_folder_is_named_with_a_fix(tmp_path):
    (tmp_path / "daemon-models").symlink_to("/nowhere/at/all")
    with pytest.raises(ModelLockError, match=r"daemon-models/.* use a state directory on a local disk"):
        async with lock_opener(str(tmp_path))(MODEL):
            raise AssertionError("it was opened")


async def test_an_abandoned_thread_touches_no_other_file(tmp_path, monkeypatch):
    """A descriptor's number is not reused while a thread uses it, and a thread that starts later fails."""
    started, resume, done, seen = threading.Event(), threading.Event(), threading.Event(), []

    def slow(fd, operation):
        started.set()
        resume.wait(60)
        seen.append((fd, os.fstat(fd).st_ino))
        done.set()
        return True

    monkeypatch.setattr(model_lock, "_try_lock", slow)
    other = tmp_path / "other"
    async with lock_opener(str(tmp_path))(MODEL) as lock, trio.open_nursery() as nursery:
        nursery.start_soon(lock.exclusive)
        await trio.to_thread.run_sync(started.wait, 60)
        nursery.cancel_scope.cancel(reason="the front ends")
    with other.open("w") as file:
        (path,) = (tmp_path / "daemon-models").iterdir()
        assert file.fileno() != lock.file.fd
        resume.set()
        assert await trio.to_thread.run_sync(done.wait, 60)
        assert seen == [(lock.file.fd, path.stat().st_ino)]
    with pytest.raises(ModelLockError):
        await lock.clear()

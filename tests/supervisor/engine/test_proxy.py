"""The proxy of an engine as a process: it is restarted, adopted, replaced and ended; the program is a stand-in."""

import os
import signal
import sys

import psutil
import pytest
import trio

from cookies import new_cookie
from lacking import no_descriptors
from llmkube.supervisor.engine import proxy
from llmkube.supervisor.engine.key_file import remove_private_files
from llmkube.supervisor.engine.process_stats import CookieScan
from llmkube.supervisor.engine.proxy import PROXIES_FOLDER, EngineProxy, config_path, proxy_cookie, proxy_of
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.ports import Shutdown
from llmkube.supervisor.values.proxy_config import ProxyConfig
from waiting import until

pytestmark = pytest.mark.e2e

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")
DEAF = (
    *SLEEPER[:2],
    f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); {SLEEPER[2]}",
)
CONFIG = ProxyConfig(("192.0.2.1", 4711), ("127.0.0.1", 4712), "key", ("10.42.0.0/16",))


@pytest.fixture
async def cookie(monkeypatch):
    """Return the engine's cookie; its proxy is restarted sooner, and no process stays behind."""
    monkeypatch.setattr(proxy, "RETRY_SECONDS", 0.01)
    yield (cookie := new_cookie())
    for left in await CookieScan().marked_processes(proxy_cookie(cookie)):
        left.kill()


def new_proxy(folder, cookie, config=CONFIG, program=SLEEPER):
    environment = {"PATH": os.environ["PATH"]}
    path = config_path(folder, cookie)
    return EngineProxy(program, config, cookie, path, folder / "proxies.log", environment, CookieScan())


async def running(cookie):
    """Return the one process that carries the cookie, once it is there."""
    with trio.fail_after(60):
        while True:
            found = [each for each in await CookieScan().marked_processes(proxy_cookie(cookie)) if each.is_running()]
            if found:
                (process,) = found
                return process
            await trio.sleep(0.02)


def ended(process):
    """Return whether the process has exited, or its parent only has not reaped it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two checks
        return True


async def test_a_proxy_that_ends_is_started_again_and_ends_with_its_engine(tmp_path, cookie):
    """A killed proxy is started again; leaving the block leaves no process, no settings and no descriptor."""
    descriptors = psutil.Process().num_fds()
    async with new_proxy(tmp_path, cookie).running(Shutdown()):
        first = await running(cookie)
        assert ProxyConfig.load(config_path(tmp_path, cookie).read_text()) == CONFIG
        assert "key" not in " ".join(first.cmdline()).split("/")
        first.kill()
        with trio.fail_after(60):
            while (second := await running(cookie)).pid == first.pid:  # noqa: ASYNC110 - the kernel has no event for a start
                await trio.sleep(0.02)
    with trio.fail_after(60):
        await until(lambda: ended(second))
    assert not config_path(tmp_path, cookie).exists()
    assert psutil.Process().num_fds() <= descriptors  # less if another test's were collected meanwhile


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the process that is left
async def test_the_next_agent_adopts_the_proxy(tmp_path, cookie):
    """The next agent adopts a running proxy; one with other settings is ended first, for it has the port."""
    async with new_proxy(tmp_path, cookie).running(Shutdown(keep=True)):
        first = await running(cookie)
    async with new_proxy(tmp_path, cookie).running(Shutdown(keep=True)):
        await trio.sleep(0.3)
        assert (await running(cookie)).pid == first.pid
    other = ProxyConfig(CONFIG.listen, CONFIG.backend, "key", ())
    async with new_proxy(tmp_path, cookie, other).running(Shutdown()):
        with trio.fail_after(60):
            await until(lambda: ended(first))
        assert (await running(cookie)).pid != first.pid


async def test_a_proxy_that_does_not_end_is_killed(tmp_path, monkeypatch, cookie):
    """One that ignores TERM gets KILL after its grace period."""
    monkeypatch.setattr(proxy, "END_SECONDS", 0.2)
    async with new_proxy(tmp_path, cookie, program=DEAF).running(Shutdown()):
        deaf = await running(cookie)
        await until(lambda: "deaf" in (tmp_path / "proxies.log").read_text())
    assert not await CookieScan().marked_processes(proxy_cookie(cookie))
    assert ended(deaf)


async def test_a_failed_start_is_retried(tmp_path, cookie):
    """A missing program does not end the engine: the next attempt finds it."""
    program = tmp_path / "program"
    async with new_proxy(tmp_path, cookie, program=(str(program),)).running(Shutdown()):
        await trio.sleep(0.1)
        program.symlink_to("/bin/cat")  # which exits at once with its settings, again and again
        with trio.fail_after(60):
            await until((tmp_path / "proxies.log").read_bytes)
        program.unlink()
        program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import time; time.sleep(600)'\n")
        program.chmod(0o755)
        os.kill((await running(cookie)).pid, signal.SIGKILL)


async def test_without_descriptors_nothing_is_given_up(tmp_path, cookie):
    """While no descriptor is free, the engine continues; its proxy is started when one is free again."""
    with no_descriptors():
        proxy_of_engine = new_proxy(tmp_path, cookie)
        async with trio.open_nursery() as nursery:

            async def live():
                async with proxy_of_engine.running(Shutdown()):
                    await trio.sleep_forever()

            nursery.start_soon(live)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    assert not (tmp_path / "proxies.log").exists()


def test_an_engine_without_a_public_address_has_no_proxy(tmp_path):
    """`llmkube up` serves by its gateway alone; files of exited engines are removed."""
    assert proxy_of(EngineRecord("c", "127.0.0.1", 1, api_key="k"), ()) is None
    record = EngineRecord("c", "127.0.0.1", 4712, api_key="key", public_host="192.0.2.1", public_port=4711)
    assert proxy_of(record, ("10.42.0.0/16",)) == CONFIG
    for cookie in ("ended", "living"):
        config_path(tmp_path, cookie).parent.mkdir(exist_ok=True)
        config_path(tmp_path, cookie).write_text("{}")
    (tmp_path / "proxies" / ".new-draft").write_text("what an agent was writing when it was killed")
    remove_private_files(tmp_path / PROXIES_FOLDER, {"living.json"})
    assert [path.stem for path in tmp_path.glob("proxies/*")] == ["living"]

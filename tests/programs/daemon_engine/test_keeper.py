"""A model of an Ollama over time, on a virtual clock: loaded, kept loaded, lost, reported falsely, unloaded."""

from itertools import pairwise

import pytest
import trio

from programs.daemon_engine.fake_ollama import NAME, FakeDaemon, answers, break_off, staged
from programs.daemon_engine.stage import given


@pytest.fixture
def fake(request):
    """Return the server; see `given`."""
    return FakeDaemon(**getattr(request, "param", {}))


@pytest.fixture
async def stage(fake):
    """Yield a keeper that has run for 10 s."""
    async with staged(fake) as stage:
        await trio.sleep(10)
        yield stage


async def test_a_model_is_loaded_renewed_and_unloaded(autojump_clock, fake, stage):
    """It is created with its context, renewals keep it loaded, and at the end no process is left."""
    assert stage.keeper.ready
    assert fake.parameters == {NAME: {"num_ctx": 512}}
    assert fake.calls == ["/api/show", "/api/pull", "/api/create", "/api/show", "/api/generate"]
    [pid] = fake.holders()
    await trio.sleep(1200)
    assert stage.keeper.ready
    assert fake.holders() == [pid]
    assert await stage.unload()
    assert fake.holders() == []
    assert not fake.ended


@given(embeds=True)
async def test_an_embedding_model_is_loaded_by_an_embedding(autojump_clock, fake, stage):
    """Ollama refuses to generate with it; an embedding of no input loads it and renews it."""
    await trio.sleep(590)
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.holders() == []


@given(pull_seconds=480)
async def test_a_slow_pull_is_not_restarted(autojump_clock, fake, stage):
    """A pull that reports progress every eight minutes has not stopped."""
    await trio.sleep(3590)
    assert not stage.keeper.ready
    await trio.sleep(3600)
    assert stage.keeper.ready
    assert fake.calls.count("/api/pull") == 1


@given(layers={"tiny:latest": [1 << 30]}, free_bytes=1 << 29)
async def test_a_pull_that_would_fill_the_disk_is_given_up_at_once(autojump_clock, fake, stage):
    """The store has lost the model, and the disk has no space for it: the agent reports that."""
    await trio.sleep(20)
    assert "no space in Ollama's models folder: 1.0 GiB needed, 512.0 MiB free" in stage.given_up
    assert "ollama rm removes models" in stage.given_up
    assert fake.calls.count("/api/pull") == 1
    assert fake.fetched_bytes <= (1 << 30) // 10


@given(faults={"/api/pull": [break_off, answers(200, b'{"status": "pul')]})
async def test_a_pull_that_stops_is_retried(autojump_clock, fake, stage):
    """A response that ends before "success", or is no JSON, is a failure, and the next try may succeed."""
    await trio.sleep(20)
    assert stage.keeper.ready
    assert fake.calls.count("/api/pull") == 3


@given(library={})
async def test_a_model_that_no_library_has_is_given_up_at_once(autojump_clock, fake, stage):
    """A retry would get the same answer; the error is reported."""
    await trio.lowlevel.checkpoint()
    assert "file does not exist" in stage.given_up
    assert fake.calls.count("/api/pull") == 1


REFUSAL = answers(500, b'{"error": "model requires more system memory (9 GiB) than is available (2 GiB)"}')


@given(faults={"/api/generate": [REFUSAL] * 3})
async def test_a_load_that_fails_thrice_is_given_up_with_the_servers_message(autojump_clock, fake, stage):
    """The agent reports the message, and restarts the engine later."""
    await trio.sleep(50)
    assert "requires more system memory" in stage.given_up
    assert fake.calls.count("/api/generate") == 3


async def test_a_model_is_loaded_again_after_a_restart_of_the_server(autojump_clock, fake, stage):
    """Requests get 503 meanwhile; the keeper does not give up."""
    fake.stop()
    await trio.sleep(12)
    assert not stage.keeper.ready
    fake.start("0.18.0")
    await trio.sleep(5)
    assert stage.keeper.ready
    assert not stage.given_up
    assert len(fake.holders()) == 1


async def test_a_model_is_created_again_after_an_upgrade_with_another_store(autojump_clock, fake, stage):
    """The new server answers before a check has noticed the stop; only its version shows the change."""
    fake.stop()
    fake.start("0.18.0")
    fake.store.clear()
    fake.blobs.clear()
    await trio.sleep(20)
    assert stage.keeper.ready
    assert fake.calls.count("/api/pull") == 2


async def test_a_server_that_has_moved_is_given_up_with_its_old_address(autojump_clock, fake, stage):
    """The server may run elsewhere; the error names the variable for its address."""
    fake.stop()
    await trio.sleep(25)
    assert not stage.given_up
    await trio.sleep(20)
    assert "no Ollama answers at http://127.0.0.1:11434 any longer" in stage.given_up
    assert "OLLAMA_HOST=" in stage.given_up


async def test_a_model_stays_ready_while_its_server_is_slow(autojump_clock, fake, stage):
    """The server still answers requests for a loaded model; one that is silent for two minutes is given up."""
    fake.hangs = True
    await trio.sleep(60)
    assert stage.keeper.ready
    fake.hangs = False
    await trio.sleep(30)
    assert stage.keeper.ready
    fake.hangs = True
    await trio.sleep(150)
    assert "has not answered for" in stage.given_up


async def test_a_model_that_is_lost_from_the_store_is_created_again(autojump_clock, fake, stage):
    """The user has removed the model; its file is still there."""
    fake.drop(NAME)
    del fake.store[NAME]
    await trio.sleep(20)
    assert stage.keeper.ready
    assert fake.calls.count("/api/create") == 2


async def test_a_killed_process_of_a_listed_model_is_noticed(autojump_clock, fake, stage):
    """Ollama still lists the model; the kernel no longer shows the process."""
    [before] = fake.holders()
    fake.kill_runner(NAME)
    await trio.sleep(15)
    assert stage.keeper.ready
    [now] = fake.holders()
    assert now != before


@given(hollow=True)
async def test_a_load_without_a_process_is_a_failed_load(autojump_clock, stage):
    """The server reports three times that it has loaded; no request is passed on, and the error is reported."""
    await trio.sleep(50)
    assert not stage.keeper.ready
    assert "none of its processes holds it" in stage.given_up


async def test_repeated_unloads_by_others_are_answered_with_backoff(autojump_clock, fake, stage):
    """Two programs that compete for memory do not load in turn without a pause."""
    loads = []
    for _ in range(240):  # for 40 minutes the model is unloaded whenever it is loaded
        if NAME in fake.loaded:
            loads.append(trio.current_time())
            fake.drop(NAME)
        await trio.sleep(10)
    assert not stage.given_up
    pauses = [after - before for before, after in pairwise(loads)]
    assert pauses[0] <= 20
    assert min(pauses[6:]) >= 50
    assert len(loads) > 30  # it is loaded again each time


async def test_an_orphan_of_a_borrowed_server_is_reported_and_not_killed(autojump_clock, fake, stage):
    """Its server was killed: the process is not ours to kill, and no second copy is loaded next to it."""
    [pid] = fake.holders()
    fake.stop(killed=True)
    await trio.sleep(3)
    fake.start()
    await trio.sleep(25)
    assert f"kill {pid}" in stage.given_up
    assert fake.holders() == [pid]
    assert not fake.ended


@given(owned=True)
async def test_an_unlisted_process_of_our_own_server_is_killed(autojump_clock, fake, stage):
    """The model is then loaded again."""
    [pid] = fake.holders()
    fake.lies = True
    fake.drop(NAME)
    await trio.sleep(40)
    assert fake.ended == [pid]
    assert stage.keeper.ready
    assert len(fake.holders()) == 1


@given(lies=True)
async def test_a_false_unload_of_a_borrowed_server_is_reported(autojump_clock, fake, stage):
    """Its process is not killed: the engine exits, and the error names the process that holds the memory."""
    [pid] = fake.holders()
    assert not await stage.unload()
    assert fake.holders() == [pid]
    assert not fake.ended


@given(lies=True, owned=True)
async def test_a_false_unload_of_our_own_server_kills_the_process(autojump_clock, fake, stage):
    [pid] = fake.holders()
    assert await stage.unload()
    assert fake.ended == [pid]


@given(lag_seconds=4.0)
async def test_an_unload_waits_for_the_exit_of_the_process(autojump_clock, fake, stage):
    """The server answers the unload before the memory is free."""
    assert await stage.unload()
    assert fake.holders() == []


async def test_an_unload_ends_in_time_when_the_server_hangs(autojump_clock, fake, stage):
    """The agent kills the engine ten seconds after TERM."""
    fake.hangs = True
    with trio.fail_after(10):
        assert not await stage.unload()


@given(load_seconds=600)
async def test_a_stop_during_a_load_leaves_nothing_loaded(autojump_clock, fake, stage):
    """The request is cancelled, and the server is asked to unload."""
    assert len(fake.holders()) == 1
    assert await stage.unload()
    assert fake.holders() == []


@given(hidden=True)
async def test_hidden_processes_leave_the_servers_list(autojump_clock, fake, stage):
    """Another user's processes on macOS are hidden: the keeper then relies on the server's list."""
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.loaded == {}


async def test_a_process_shared_by_two_names_outlives_one_of_them(autojump_clock, fake, stage):
    """Two names of one file share a process, which stays loaded for the other name."""
    fake.store["mine"] = fake.store[NAME]
    fake.loaded["mine"] = fake.loaded.pop(NAME)  # as after a load under that name with other options
    fake.expires = {"mine": float("inf")}
    await trio.sleep(20)
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.loaded.keys() == {"mine"}
    assert len(fake.holders()) == 1

"""A model of an Ollama over time, on a virtual clock: loaded, kept, lost, lied about, given back."""

from itertools import pairwise

import pytest
import trio

from programs.daemon_engine.fake_ollama import NAME, FakeDaemon, answers, break_off, staged
from programs.daemon_engine.stage import given


@pytest.fixture
def fake(request):
    """The server; see `given`."""
    return FakeDaemon(**getattr(request, "param", {}))


@pytest.fixture
async def stage(fake):
    """A keeper that has been at work on it for 10 s."""
    async with staged(fake) as stage:
        await trio.sleep(10)
        yield stage


async def test_a_model_is_loaded_kept_and_given_back(autojump_clock, fake, stage):
    """It is made with its context, kept by renewals, and at the end no process is left."""
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
async def test_a_model_of_embeddings_is_loaded_by_what_it_can_do(autojump_clock, fake, stage):
    """Ollama refuses to generate with it; loading and renewing ask for an embedding of nothing."""
    await trio.sleep(590)
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.holders() == []


@given(pull_seconds=480)
async def test_a_library_model_is_pulled_once_however_long_that_takes(autojump_clock, fake, stage):
    """A pull that says something every eight minutes is none that has stopped."""
    await trio.sleep(3590)
    assert not stage.keeper.ready
    await trio.sleep(3600)
    assert stage.keeper.ready
    assert fake.calls.count("/api/pull") == 1


@given(layers={"tiny:latest": [1 << 30]}, free_bytes=1 << 29)
async def test_a_pull_that_would_fill_the_disk_is_given_up_at_once(autojump_clock, fake, stage):
    """The store has lost the model, and its disk has no room for it any more: the agent shows the sentence."""
    await trio.sleep(20)
    assert "no space in Ollama's models folder: 1.0 GiB needed, 512.0 MiB free" in stage.given_up
    assert "ollama rm removes models" in stage.given_up
    assert fake.calls.count("/api/pull") == 1
    assert fake.fetched_bytes <= (1 << 30) // 10


@given(faults={"/api/pull": [break_off, answers(200, b'{"status": "pul')]})
async def test_a_pull_that_stops_is_begun_again(autojump_clock, fake, stage):
    """An answer that ends before its success, or is no JSON, is a failure, and the next try may succeed."""
    await trio.sleep(20)
    assert stage.keeper.ready
    assert fake.calls.count("/api/pull") == 3


@given(library={})
async def test_a_model_that_no_library_has_is_given_up_at_once(autojump_clock, fake, stage):
    """To ask again would be answered the same; its user is told."""
    await trio.lowlevel.checkpoint()
    assert "file does not exist" in stage.given_up
    assert fake.calls.count("/api/pull") == 1


REFUSAL = answers(500, b'{"error": "model requires more system memory (9 GiB) than is available (2 GiB)"}')


@given(faults={"/api/generate": [REFUSAL] * 3})
async def test_a_load_that_fails_thrice_is_given_up_with_the_servers_words(autojump_clock, fake, stage):
    """The agent says them, and starts the engine again later."""
    await trio.sleep(50)
    assert "requires more system memory" in stage.given_up
    assert fake.calls.count("/api/generate") == 3


async def test_a_server_that_starts_again_has_the_model_loaded_again(autojump_clock, fake, stage):
    """Requests wait with 503 meanwhile; nothing is given up."""
    fake.stop()
    await trio.sleep(12)
    assert not stage.keeper.ready
    fake.start("0.18.0")
    await trio.sleep(5)
    assert stage.keeper.ready
    assert not stage.given_up
    assert len(fake.holders()) == 1


async def test_an_upgrade_with_another_store_has_the_model_made_again(autojump_clock, fake, stage):
    """The new server answers before a look has found none; only its version tells."""
    fake.stop()
    fake.start("0.18.0")
    fake.store.clear()
    fake.blobs.clear()
    await trio.sleep(20)
    assert stage.keeper.ready
    assert fake.calls.count("/api/pull") == 2


async def test_a_server_that_has_moved_is_given_up_with_its_old_address(autojump_clock, fake, stage):
    """It runs elsewhere, for all that is known; the sentence says which variable names where."""
    fake.stop()
    await trio.sleep(25)
    assert not stage.given_up
    await trio.sleep(20)
    assert "no Ollama answers at http://127.0.0.1:11434 any longer" in stage.given_up
    assert "OLLAMA_HOST=" in stage.given_up


async def test_a_server_that_is_late_keeps_what_it_has_loaded_in_service(autojump_clock, fake, stage):
    """It answers requests with what is loaded; one that stays silent for two minutes is given up."""
    fake.hangs = True
    await trio.sleep(60)
    assert stage.keeper.ready
    fake.hangs = False
    await trio.sleep(30)
    assert stage.keeper.ready
    fake.hangs = True
    await trio.sleep(150)
    assert "has not answered for" in stage.given_up


async def test_a_model_that_is_lost_from_the_store_is_made_again(autojump_clock, fake, stage):
    """Its user has removed it; the file it is made of is still there."""
    fake.drop(NAME)
    del fake.store[NAME]
    await trio.sleep(20)
    assert stage.keeper.ready
    assert fake.calls.count("/api/create") == 2


async def test_a_process_that_is_gone_while_its_model_is_listed_is_noticed(autojump_clock, fake, stage):
    """Ollama lists what was killed; the kernel does not."""
    [before] = fake.holders()
    fake.kill_runner(NAME)
    await trio.sleep(15)
    assert stage.keeper.ready
    [now] = fake.holders()
    assert now != before


@given(hollow=True)
async def test_a_load_without_a_process_is_not_believed(autojump_clock, stage):
    """It says three times that it has loaded; no request is let through, and its user is told."""
    await trio.sleep(50)
    assert not stage.keeper.ready
    assert "none of its processes holds it" in stage.given_up


async def test_what_takes_the_model_away_again_and_again_is_met_ever_more_slowly(autojump_clock, fake, stage):
    """Two programs that want the same memory do not load in turn without a pause."""
    loads = []
    for _ in range(240):  # 40 minutes in which the model is taken away whenever it is there
        if NAME in fake.loaded:
            loads.append(trio.current_time())
            fake.drop(NAME)
        await trio.sleep(10)
    assert not stage.given_up
    pauses = [after - before for before, after in pairwise(loads)]
    assert pauses[0] <= 20
    assert min(pauses[6:]) >= 50
    assert len(loads) > 30  # and it comes back each time


async def test_a_process_that_is_left_of_a_borrowed_server_is_told_and_not_ended(autojump_clock, fake, stage):
    """Its server was killed: the memory is not ours to take, and no second copy is loaded beside it."""
    [pid] = fake.holders()
    fake.stop(killed=True)
    await trio.sleep(3)
    fake.start()
    await trio.sleep(25)
    assert f"kill {pid}" in stage.given_up
    assert fake.holders() == [pid]
    assert not fake.ended


@given(owned=True)
async def test_a_process_that_our_own_server_keeps_is_ended(autojump_clock, fake, stage):
    """What it does not list and holds all the same is ended, and the model is loaded anew."""
    [pid] = fake.holders()
    fake.lies = True
    fake.drop(NAME)
    await trio.sleep(40)
    assert fake.ended == [pid]
    assert stage.keeper.ready
    assert len(fake.holders()) == 1


@given(lies=True)
async def test_an_unload_that_is_said_and_not_done_is_told(autojump_clock, fake, stage):
    """A borrowed server's process is left alone: the engine ends, and says who holds the memory."""
    [pid] = fake.holders()
    assert not await stage.unload()
    assert fake.holders() == [pid]
    assert not fake.ended


@given(lies=True, owned=True)
async def test_an_unload_of_our_own_server_ends_what_stays(autojump_clock, fake, stage):
    """Its process is ours to end."""
    [pid] = fake.holders()
    assert await stage.unload()
    assert fake.ended == [pid]


@given(lag_seconds=4.0)
async def test_a_slow_end_of_a_process_is_waited_for(autojump_clock, fake, stage):
    """The answer to an unload comes before the memory is back."""
    assert await stage.unload()
    assert fake.holders() == []


async def test_an_unload_has_an_end_whatever_hangs(autojump_clock, fake, stage):
    """The agent ends the engine ten seconds after TERM."""
    fake.hangs = True
    with trio.fail_after(10):
        assert not await stage.unload()


@given(load_seconds=600)
async def test_a_stop_in_the_middle_of_a_load_leaves_nothing(autojump_clock, fake, stage):
    """The request is broken off, and the server told to unload what it had begun."""
    assert len(fake.holders()) == 1
    assert await stage.unload()
    assert fake.holders() == []


@given(hidden=True)
async def test_processes_that_cannot_be_seen_leave_the_servers_word(autojump_clock, fake, stage):
    """Another user's on macOS: loading, keeping and unloading go by what it lists."""
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.loaded == {}


async def test_another_name_of_the_same_file_keeps_its_process(autojump_clock, fake, stage):
    """Two names of one file share a process: who ends leaves it to the other."""
    fake.store["mine"] = fake.store[NAME]
    fake.loaded["mine"] = fake.loaded.pop(NAME)  # as after a load under that name with other options
    fake.expires = {"mine": float("inf")}
    await trio.sleep(20)
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.loaded.keys() == {"mine"}
    assert len(fake.holders()) == 1

"""A model of an oMLX over time, on a virtual clock: loaded, kept loaded, lost, reported falsely, unloaded."""

import pytest
import trio

from llmkube.base.http.message import NO_HEADERS, Response
from llmkube.programs.daemon_engine.omlx_api import OmlxApi
from llmkube.programs.daemon_engine.omlx_model import (
    MEASURABLE_BYTES,
    MemoryHistory,
    MemorySample,
    OmlxModel,
    is_still_held,
    record_sample,
)
from llmkube.programs.daemon_engine.processes import Process, omlx_servers_in
from programs.daemon_engine.fake_omlx import FOLDER, GIB, NAME, PID, FakeOmlx, refusal, staged
from programs.daemon_engine.stage import given

CHAT, UNLOAD, ADMIN_UNLOAD = "/v1/chat/completions", f"/v1/models/{NAME}/unload", f"/admin/api/models/{NAME}/unload"
ALIKE = {NAME: 4 * GIB, "other": 4 * GIB}


@pytest.fixture
def fake(request):
    """Return the server; see `given`."""
    return FakeOmlx(**getattr(request, "param", {}))


@pytest.fixture
async def stage(fake):
    """Yield a keeper that has run for 10 s."""
    async with staged(fake) as stage:
        await trio.sleep(10)
        yield stage


async def test_a_model_is_loaded_kept_and_unloaded(autojump_clock, fake, stage):
    """The first request loads it; at the end it is not listed, and the process holds that much less memory."""
    assert stage.keeper.ready
    assert (fake.loaded, fake.holding(), fake.calls) == ({NAME}, 4 * GIB, [CHAT])
    await trio.sleep(1200)
    assert stage.keeper.ready
    assert stage.keeper.sample.holders == (PID,)
    assert await stage.unload()
    assert (fake.loaded, fake.holding(), fake.ended) == (set(), 0, [])


@given(embeds=True)
async def test_an_embedding_model_is_loaded_by_an_embedding(autojump_clock, fake, stage):
    """OMLX refuses to chat with it."""
    await trio.lowlevel.checkpoint()
    assert stage.keeper.ready
    assert fake.calls == ["/v1/embeddings"]


@given(key="CanaryKeyOfTheOwner")
async def test_its_key_is_sent_with_every_request(autojump_clock, fake, stage):
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.loaded == set()


async def test_a_changed_key_is_reported(autojump_clock, fake, stage):
    """The error has oMLX's message: the agent restarts the engine, which then looks for an oMLX that it can use."""
    fake.key = "CanaryKeyOfTheOwner"
    await trio.sleep(150)
    assert "has failed to list its models for" in stage.given_up
    assert "oMLX answers 401: Invalid API key" in stage.given_up


@given(lies=True)
async def test_a_false_unload_of_a_borrowed_server_is_reported(autojump_clock, fake, stage):
    """Its process is not killed: the engine exits, and the error names the process that holds the memory."""
    assert not await stage.unload()
    assert stage.keeper.sample.holders == (PID,)
    assert (fake.loaded, fake.holding(), fake.ended) == (set(), 4 * GIB, [])


@given(lies=True, owned=True)
async def test_a_false_unload_of_our_own_server_kills_it(autojump_clock, fake, stage):
    assert await stage.unload()
    assert fake.ended == [PID]


@given(sizes=ALIKE, loaded={"other"}, held={"other": 4 * GIB})
async def test_a_false_unload_is_noticed_while_another_model_is_unloaded(autojump_clock, fake, stage):
    """The process holds less memory, but not because of our model."""
    fake.drop("other")
    fake.lag_seconds = float("inf")  # of ours
    assert not await stage.unload()


@given(sizes=ALIKE, next="other")
async def test_a_model_loaded_during_our_unload_is_not_taken_for_ours(autojump_clock, fake, stage):
    """The process holds as much memory as before, and our model is unloaded."""
    assert await stage.unload()
    assert fake.loaded == {"other"}


@given(lag_seconds=4.0)
async def test_an_unload_waits_until_the_memory_is_free(autojump_clock, fake, stage):
    assert await stage.unload()
    assert fake.holding() == 0


@pytest.mark.parametrize(("seconds", "back"), [(4, True), (60, False)])
async def test_an_unload_waits_for_the_end_of_a_load(autojump_clock, seconds, back):
    """A killed front has started the load and oMLX continues it: it can be unloaded only when it is done."""
    fake = FakeOmlx(loading={NAME})

    async def end_load():
        await trio.sleep(seconds)
        fake.loading.discard(NAME)
        fake.put(NAME)

    async with staged(fake) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(end_load)
        assert await stage.unload() is back
        nursery.cancel_scope.cancel(reason="the test is over")
    assert (fake.holding(), set(fake.calls)) == (0, {UNLOAD} if back else set())


async def test_an_unload_ends_in_time_when_the_server_hangs(autojump_clock, fake, stage):
    """The agent kills the engine some seconds after TERM."""
    fake.hangs = True
    with trio.fail_after(10):
        assert not await stage.unload()


@given(hidden=True)
async def test_a_hidden_and_silent_server_is_not_reported_as_unloaded(autojump_clock, fake, stage):
    assert stage.keeper.ready
    fake.hangs = True
    assert not await stage.unload()


@given(hidden=True)
async def test_hidden_processes_leave_the_servers_list(autojump_clock, fake, stage):
    """Another user's processes on macOS are hidden: the keeper then relies on the server's list."""
    assert stage.keeper.ready
    assert await stage.unload()
    assert fake.loaded == set()


@given(unloads=("/admin/api",))
async def test_a_release_without_the_unload_path_is_reported(autojump_clock, fake, stage):
    """Both paths are tried; the second one accepts only the cookie of oMLX's admin pages."""
    assert not await stage.unload()
    assert fake.calls[1:3] == [UNLOAD, ADMIN_UNLOAD]
    assert fake.loaded == {NAME}


async def test_a_model_is_loaded_again_after_an_unnoticed_restart(autojump_clock, fake, stage):
    """Between two checks the same release is restarted, without models and as another process."""
    fake.stop()
    fake.start()
    await trio.sleep(20)
    assert stage.keeper.ready
    assert stage.keeper.sample.holders == (PID + 1,)
    assert fake.loaded == {NAME}
    assert await stage.unload()


async def test_the_models_id_is_looked_up_again_after_an_upgrade(autojump_clock, fake, stage):
    """The new release may give the folder another id."""
    fake.stop()
    await trio.sleep(12)
    assert not stage.keeper.ready
    fake.folders, fake.sizes = {"tiny": FOLDER}, {"tiny": 4 * GIB}
    fake.start("0.7.0")
    await trio.sleep(10)
    assert stage.keeper.ready
    assert stage.keeper.sample.holders == (PID + 1,)
    assert (stage.keeper.adapter.name, fake.loaded) == ("tiny", {"tiny"})


async def test_a_server_that_has_moved_is_given_up_with_its_old_address(autojump_clock, fake, stage):
    """The server may listen on another port; the error names the flag for its address."""
    fake.stop()
    await trio.sleep(45)
    assert "no oMLX answers at http://127.0.0.1:8000 any longer" in stage.given_up
    assert "--omlx-port" in stage.given_up


async def test_a_model_that_others_unload_is_loaded_again(autojump_clock, fake, stage):
    """By an idle timeout, another client, or memory pressure within oMLX."""
    fake.drop(NAME)
    await trio.sleep(15)
    assert stage.keeper.ready
    assert fake.calls == [CHAT, CHAT]


@given(folders={}, sizes={}, owned=True)
async def test_a_folder_that_our_own_server_rejects_is_reported(autojump_clock, stage):
    """Our own server looks in no other folder: this folder is not usable."""
    await trio.lowlevel.checkpoint()
    assert stage.given_up == f"oMLX does not recognize {FOLDER} as a model; see its output above"


@given(default="other")
async def test_the_default_model_does_not_answer_for_ours(autojump_clock, fake, stage):
    """The server has lost the folder, and uses its default model for all names: no request reaches that model."""
    assert stage.keeper.ready
    fake.drop(NAME)
    del fake.folders[NAME]
    await trio.sleep(6)
    assert not stage.keeper.ready
    await trio.sleep(20)
    assert f"no longer lists {FOLDER} among its models" in stage.given_up
    assert fake.calls == [CHAT]
    assert "other" not in fake.loaded


async def test_an_id_that_moves_to_another_folder_is_not_ours(autojump_clock, fake, stage):
    """The id is the last part of the folder: of two folders with the same, the first one found gets it."""
    fake.folders[NAME] = "/Volumes/usb/tiny-4bit"
    await trio.sleep(40)
    assert not stage.keeper.ready
    assert stage.given_up


@given(hollow=True)
async def test_a_load_that_is_not_listed_is_a_failed_load(autojump_clock, stage):
    """The server answers three times, and lists nothing."""
    await trio.sleep(50)
    assert not stage.keeper.ready
    assert "oMLX reports that it has loaded the model, but does not list it" in stage.given_up


@given(faults={CHAT: [Response(200, NO_HEADERS, b' {"model": "other"}')] * 3})
async def test_an_answer_in_another_models_name_is_a_failed_load(autojump_clock, stage):
    """A release may report which model has answered."""
    await trio.sleep(50)
    assert f"oMLX was asked for {NAME}, but other answered" in stage.given_up


@given(faults={CHAT: [refusal(507, "projected memory 30 GB would exceed the memory ceiling 28 GB")] * 3})
async def test_a_load_that_fails_thrice_is_given_up_with_the_servers_message(autojump_clock, stage):
    """The agent reports the message, and restarts the engine later."""
    await trio.sleep(50)
    assert "oMLX answers 507: projected memory 30 GB would exceed the memory ceiling 28 GB" in stage.given_up


@given(loading={NAME})
async def test_a_load_of_another_client_is_waited_for(autojump_clock, fake, stage):
    """However long it takes; we send no second one."""
    await trio.sleep(890)
    assert (stage.given_up, fake.calls) == ("", [])
    fake.loading.clear()
    fake.put(NAME)
    await trio.sleep(10)
    assert stage.keeper.ready


@given(load_seconds=600)
async def test_a_loading_process_shows_progress(autojump_clock, stage):
    """The agent gives up a load without progress."""
    await trio.sleep(50)
    assert stage.keeper.sample.holders == (PID,)
    assert not stage.keeper.ready


@given(load_seconds=600)
async def test_a_stop_during_a_load_leaves_nothing_loaded(autojump_clock, fake, stage):
    """The request is cancelled; what had been loaded by then is unloaded."""
    await trio.sleep(50)
    assert await stage.unload()
    assert fake.holding() == 0


async def test_a_stop_before_the_first_check_unloads_the_model_of_an_earlier_front(autojump_clock):
    """The server's id for the model is not known then; its folder is."""
    fake = FakeOmlx()
    fake.put(NAME)
    async with staged(fake) as stage:
        assert await stage.unload()
        assert (fake.loaded, fake.holding()) == (set(), 0)


def test_a_server_is_found_by_its_program_its_app_or_its_python():
    """No other process is checked for its port."""
    table = [
        Process(2, 1, ("/opt/homebrew/bin/omlx", "serve")),
        Process(3, 1, ("python3.11", "/opt/homebrew/bin/omlx", "serve", "--port", "8000")),
        Process(4, 1, ("/Applications/oMLX.app/Contents/MacOS/python", "-m", "omlx.cli", "serve")),
        Process(5, 1, ("llama-server", "--model", "/m", "--alias", "omlx")),
        Process(6, 1, ("/usr/bin/python3", "-m", "llmkube.programs.daemon_engine.omlx_program")),
        Process(7, 1, ()),
        Process(8, 9, ("/Applications/oMLX.app/Contents/MacOS/python", "-m", "omlx.cli", "serve")),
        Process(9, 1, ("/Applications/oMLX.app/Contents/MacOS/oMLX",)),
    ]
    assert omlx_servers_in(table) == (8, 2, 3, 4, 9)
    ring = [Process(2, 3, ("omlx", "serve")), Process(3, 2, ("omlx", "serve"))]
    assert omlx_servers_in(ring) == (2, 3)


def test_no_text_shows_the_key():
    api = OmlxApi(None, "http://x", "CanaryKey")
    assert "CanaryKey" not in repr(api) + repr(OmlxModel(api, 1, "/m", None))


# -- memory samples ---------------------------------------------------------------------------------------------------


G = 1024**3
OURS, OTHER = 4 * G, 2 * G


def sample(held, others=(), *, pid=1, size=OURS):
    return MemorySample(pid=pid, held=held, size=size, others=dict.fromkeys(others, OTHER))


def history(before, loaded):
    return MemoryHistory(before=before, loaded=loaded)


LOADED = history(sample(G), sample(5 * G))
BOTH = history(sample(3 * G, ["other"]), sample(7 * G, ["other"]))


@pytest.mark.parametrize(
    ("known", "now", "still"),
    [
        pytest.param(LOADED, sample(G), False, id="as much memory as before the load"),
        pytest.param(LOADED, sample(5 * G), True, id="all of it is held"),
        pytest.param(LOADED, sample(2 * G), False, id="a quarter is left: buffers of its requests"),
        pytest.param(LOADED, sample(4 * G), True, id="three quarters are left"),
        pytest.param(LOADED, sample(3 * G, ["other"]), False, id="other loaded, ours unloaded"),
        pytest.param(LOADED, sample(7 * G, ["other"]), True, id="other loaded, ours not unloaded"),
        pytest.param(BOTH, sample(5 * G), True, id="other unloaded"),
        pytest.param(BOTH, sample(G), False, id="both unloaded"),
        pytest.param(history(None, sample(5 * G)), sample(5 * G), True, id="loaded at the first sample"),
        pytest.param(history(None, sample(5 * G)), sample(G), False, id="loaded at the first sample, then unloaded"),
        pytest.param(history(None, sample(5 * G, size=0)), sample(5 * G), False, id="its size is unknown"),
        pytest.param(history(sample(G), sample(2 * G)), sample(G), False, id="it took less than its listed size"),
        pytest.param(history(sample(G), sample(2 * G)), sample(2 * G), True, id="it took less, and stayed"),
        pytest.param(history(sample(G), sample(5 * G, size=0)), sample(5 * G), True, id="measured alone"),
        pytest.param(LOADED, sample(5 * G, pid=2), False, id="another process"),
        pytest.param(MemoryHistory(before=sample(G)), sample(5 * G), False, id="it was never listed"),
    ],
)
def test_the_rest_of_a_model_is_estimated_from_its_memory(known, now, still):
    """The limit is half of the model's size, corrected by the models loaded and unloaded meanwhile."""
    assert is_still_held(known, now) is still


def test_for_a_small_model_the_servers_list_decides():
    """Buffers vary by as much memory."""
    small = MEASURABLE_BYTES - 1
    known = history(sample(G), sample(G + small, size=small))
    assert not is_still_held(known, sample(G + small))


def test_samples_are_evaluated_in_order():
    """A listed model is loaded; an unlisted one is kept until its memory is free; the next load is then measured."""
    known = record_sample(MemoryHistory(), sample(G), listed=False)
    assert known == MemoryHistory(before=sample(G))
    known = record_sample(known, sample(5 * G), listed=True)
    assert known == LOADED
    assert record_sample(known, sample(5 * G), listed=False) == LOADED
    assert record_sample(known, sample(2 * G), listed=False) == MemoryHistory(before=sample(2 * G))


def test_samples_of_another_process_are_ignored():
    """So are those from before a process was hidden."""
    assert record_sample(LOADED, sample(7 * G, pid=2), listed=True) == MemoryHistory(loaded=sample(7 * G, pid=2))
    assert record_sample(LOADED, sample(7 * G, pid=2), listed=False) == MemoryHistory(before=sample(7 * G, pid=2))
    assert record_sample(LOADED, MemorySample(pid=None), listed=True) == MemoryHistory()


def test_memory_of_another_model_that_is_freed_late_is_not_ours():
    """That model is not listed in the last sample before our unload, but its memory is freed after it."""
    known = record_sample(BOTH, sample(7 * G), listed=True)
    assert known.loaded == sample(7 * G, ["other"])
    assert is_still_held(known, sample(5 * G))
    assert record_sample(BOTH, sample(5 * G), listed=True).loaded == sample(5 * G)

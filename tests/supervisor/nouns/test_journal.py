import errno
import json
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio

from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import LaunchPlan, Placeholder
from llmkube.supervisor.engine.orphans import belongs, take_stock
from llmkube.supervisor.local import open_local_ports
from llmkube.supervisor.nouns.desired import Desired
from llmkube.supervisor.nouns.journal import EngineRecord, Entry, FileJournal, JournalError, dump, load
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.nouns.target import Launch
from llmkube.weights.estimate.sizing import Component, Demand, Estimate, Place
from llmkube.weights.store.blobs import WeightsFile

CHAT = Key("ns", "chat")
PLAN = LaunchPlan(
    (Placeholder.PROGRAM, "--model", Placeholder.MODEL, "--port", Placeholder.PORT, "{port}"),
    (("A", "1"),),
    "llamacpp",
    "chat",
)
WEIGHTS = WeightsFile(Path("/store/x.gguf"), 10, None, "x")
ENGINE = EngineRecord("cookie", "127.0.0.1", 4000, 7, 42, "boot:1")


def entry(engine=ENGINE, accelerator="metal"):
    service = {"metadata": {"name": "chat", "namespace": "ns"}, "spec": {"modelRef": "m", "future": {"field": 1}}}
    model = {
        "metadata": {"name": "m", "namespace": "ns"},
        "spec": {"source": "/x.gguf", "hardware": {"accelerator": accelerator}},
    }
    wish = Desired(decode(InferenceService, service), decode(Model, model))
    return Entry(wish, Launch(PLAN, WEIGHTS), engine)


def journal(tmp_path):
    return FileJournal(tmp_path / "journal", trio.CapacityLimiter(1))


@pytest.mark.parametrize("engine", [ENGINE, None])
def test_an_entry_survives_the_disk(engine):
    """What is read back equals what was written, down to slots, a user's equal words and fields of the future."""
    before = entry(engine)
    after = load(json.loads(json.dumps(dump(before))))
    assert after == before
    assert after.launch.plan.digest == before.launch.plan.digest
    assert [type(arg) for arg in after.launch.plan.argv] == [type(arg) for arg in PLAN.argv]
    assert dump(after) == dump(before)


def test_what_an_adopted_engine_needs_is_known_again():
    """The estimate and the demands survive the disk; those of another version cost the figure and not the engine."""
    plan = attrs.evolve(PLAN, demand=Demand(context=8192, overrides=(("a", "CPU"),), speculation=("draft-mtp",)))
    estimate = Estimate((Component("weights", Place.DEVICE, 7),), ("a note",), certain=False)
    before = attrs.evolve(entry(), launch=Launch(plan, WEIGHTS, estimate))
    data = json.loads(json.dumps(dump(before)))
    assert load(data) == before
    data["plan"]["demand"]["of another version"] = 1
    data["estimate"]["components"][0]["place"] = "elsewhere"
    after = load(data)
    assert (after.launch.plan.demand, after.launch.estimate) == (None, None)
    assert after.launch.plan.digest == before.launch.plan.digest


async def test_entries_are_private_and_replaced_whole(tmp_path):
    """A file of the journal is 0600, holds the newest entry, and nothing else is left beside it."""
    kept = journal(tmp_path)
    await kept.write(entry(None))
    await kept.write(entry())
    (path,) = (tmp_path / "journal").rglob("*.*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept.read_all() == {CHAT: entry()}
    await kept.remove(CHAT)
    await kept.remove(CHAT)
    assert kept.read_all() == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "plan": 3}', "\udcff"]
)
async def test_a_damaged_entry_is_as_good_as_none(tmp_path, text):
    """A file that cannot be read, or of another format, neither stops the agent nor hides its neighbours."""
    kept = journal(tmp_path)
    await kept.write(entry())
    (tmp_path / "journal" / "ns" / "other.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert kept.read_all() == {CHAT: entry()}


async def test_a_journal_that_cannot_be_written_says_so(tmp_path):
    """Where no folder can be made, writing is an error that names the file."""
    (tmp_path / "journal").write_text("in the way")
    with pytest.raises(JournalError, match=r"chat\.json"):
        await journal(tmp_path).write(entry())


@attrs.frozen
class Seen:
    """A process as the scan finds it."""

    pid: int
    cookie: str

    def environ(self):
        return {"LLMKUBE_ENGINE": self.cookie}


SETTINGS = AgentSettings("host", Path("/s"), Path("/s/store"), "/llama-server")


def stock(engine, *seen, starts, leader=0):
    left, strays = take_stock(
        {CHAT: entry(engine)}, SETTINGS, seen, lambda pid: starts.get(pid, ""), lambda process: process.pid == leader
    )
    return left[CHAT].engine, [stray.pid for stray in strays]


def test_what_journal_and_kernel_both_know_is_adopted():
    """A process with the record's pid and start is adopted with its helpers, also where environments cannot be read."""
    assert stock(ENGINE, Seen(42, "cookie"), Seen(43, "cookie"), starts={42: "boot:1"}) == (ENGINE, [])
    assert stock(ENGINE, starts={42: "boot:1"}) == (ENGINE, [])


def test_a_recycled_pid_is_not_adopted():
    """A process of the same pid that started at another moment is neither adopted nor ended."""
    assert stock(ENGINE, starts={42: "boot:2"}) == (None, [])


def test_helpers_of_a_dead_engine_are_strays():
    """What a dead engine has started, and what no entry claims, is to be ended."""
    assert stock(ENGINE, Seen(43, "cookie"), Seen(50, "other"), starts={43: "boot:9"}) == (None, [43, 50])


def test_a_spawn_that_was_never_recorded_is_found_by_its_cookie():
    """An agent killed between the spawn and the journal's second line leaves an engine that is adopted all the same."""
    intent = attrs.evolve(ENGINE, pid=0, started="")
    assert stock(intent, Seen(43, "cookie"), Seen(42, "cookie"), starts={42: "boot:1"}, leader=42) == (ENGINE, [])
    assert stock(intent, starts={}) == (None, [])


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, True),
        ({"namespace": "ns"}, True),
        ({"namespace": "other"}, False),
        ({"accelerators": frozenset({"cpu"})}, False),
    ],
)
def test_what_the_settings_no_longer_want_is_left_only_while_its_engine_runs(changes, kept):
    """Another namespace or accelerator makes what was left somebody else's; what runs has still to end in order."""
    settings = attrs.evolve(SETTINGS, **changes)
    assert belongs(entry(), settings) is kept
    assert (CHAT in take_stock({CHAT: entry(ENGINE)}, settings, [], lambda _: "")[0]) is kept
    assert CHAT in take_stock({CHAT: entry(ENGINE)}, settings, [], lambda _: ENGINE.started)[0]


async def test_what_is_not_left_to_an_agent_is_forgotten(tmp_path):
    """A dead engine's entry stays for who would serve it again, and goes where the settings exclude it."""
    kept = journal(tmp_path)
    await kept.write(entry())
    for namespace, left in (("ns", {CHAT}), ("other", set())):
        settings = AgentSettings("h", tmp_path, tmp_path / "store", "/no/engine", namespace=namespace)
        async with open_local_ports(settings, SimpleNamespace(get=print)) as ports:
            assert set(ports.left) == set(kept.read_all()) == left


async def test_the_longest_name_can_be_written(tmp_path):
    """A service may have a name of 253 characters, and it comes back whole."""
    kept, key = journal(tmp_path), Key("ns", "a" * 253)
    known = entry()
    metadata = attrs.evolve(known.wish.service.metadata, name=key.name)
    wish = attrs.evolve(known.wish, service=attrs.evolve(known.wish.service, metadata=metadata))
    await kept.write(attrs.evolve(known, wish=wish))
    assert kept.read_all().keys() == {key}
    await kept.remove(key)
    assert kept.read_all() == {}


async def test_a_journal_that_cannot_be_opened_for_now_stops_the_start(tmp_path, monkeypatch):
    """Without descriptors an entry is not as good as none: its engine would be ended as a stray."""
    kept = journal(tmp_path)
    await kept.write(entry())

    def read_text(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(JournalError, match="Too many open files"):
        kept.read_all()

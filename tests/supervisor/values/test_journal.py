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
from llmkube.k8s.crd.sharing import ModelPool
from llmkube.k8s.resource import Key
from llmkube.supervisor.local import open_local_ports
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.journal import FileJournal, JournalError, dump, load
from llmkube.supervisor.values.settings import AgentSettings
from llmkube.weights.estimate.demand import Component, Demand, Estimate, Location
from supervisor.values.entries import CHAT, ENGINE, PLAN, WEIGHTS, entry


def journal(tmp_path):
    return FileJournal(tmp_path / "journal", trio.CapacityLimiter(1))


@pytest.mark.parametrize("engine", [ENGINE, None])
def test_an_entry_survives_the_disk(engine):
    """The entry read back equals the one written, down to slots, equal user texts and fields of the future."""
    before = entry(engine)
    after = load(json.loads(json.dumps(dump(before))))
    assert after == before
    assert after.launch.plan.digest == before.launch.plan.digest
    assert [type(arg) for arg in after.launch.plan.argv] == [type(arg) for arg in PLAN.argv]
    assert dump(after) == dump(before)


def test_the_need_of_an_adopted_engine_is_known_again():
    """The estimate and the demands survive the disk; those of another version cost the figure and not the engine."""
    plan = attrs.evolve(PLAN, demand=Demand(context=8192, overrides=(("a", "CPU"),), speculation=("draft-mtp",)))
    estimate = Estimate((Component("weights", Location.DEVICE, 7),), ("a note",), certain=False)
    before = attrs.evolve(entry(), launch=Launch(plan, WEIGHTS, estimate))
    data = json.loads(json.dumps(dump(before)))
    assert load(data) == before
    data["plan"]["demand"]["of another version"] = 1
    data["estimate"]["components"][0]["place"] = "elsewhere"
    after = load(data)
    assert (after.launch.plan.demand, after.launch.estimate) == (None, None)
    assert after.launch.plan.digest == before.launch.plan.digest


def test_an_engine_of_an_earlier_release_is_still_known():
    """It has neither build nor format, and both are unknown then; its plan is still today's."""
    data = json.loads(json.dumps(dump(entry(ENGINE))))
    del data["engine"]["build"], data["plan"]["weights_format"]
    after = load(data)
    assert (after.engine.build, after.launch.plan.weights_format) == ("", "")
    today = attrs.evolve(after.launch.plan, weights_format="gguf")
    assert (after.launch.plan, after.launch.plan.digest) == (today, today.digest)


async def test_entries_are_private_and_replaced_whole(tmp_path):
    """A file of the journal is 0600, holds the newest entry, and nothing else is left next to it."""
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
async def test_a_damaged_entry_is_ignored(tmp_path, text):
    """A file that cannot be read, or of another format, neither stops the agent nor hides other entries."""
    kept = journal(tmp_path)
    await kept.write(entry())
    (tmp_path / "journal" / "ns" / "other.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert kept.read_all() == {CHAT: entry()}


async def test_a_draft_comes_back_with_its_service(tmp_path):
    """The next agent knows the draft Model."""
    kept, known = journal(tmp_path), entry()
    desired = attrs.evolve(known.desired, draft=known.desired.model)
    await kept.write(attrs.evolve(known, desired=desired))
    assert kept.read_all()[CHAT].desired == desired


async def test_a_pool_comes_back_with_its_member(tmp_path):
    """The next agent gives it its turns also while the API server is not reachable."""
    kept, known = journal(tmp_path), entry()
    spec = {"members": [{"inferenceServiceRef": {"name": "chat"}}]}
    pool = decode(ModelPool, {"metadata": {"name": "slot", "namespace": "ns"}, "spec": spec})
    await kept.write(attrs.evolve(known, desired=attrs.evolve(known.desired, pool=pool)))
    assert kept.read_all()[CHAT].desired.pool == pool


async def test_a_journal_that_cannot_be_written_reports_it(tmp_path):
    """If the folder cannot be created, writing is an error that names the file."""
    (tmp_path / "journal").write_text("in the way")
    with pytest.raises(JournalError, match=r"chat\.json"):
        await journal(tmp_path).write(entry())


async def test_an_entry_of_no_use_to_the_next_agent_is_forgotten(tmp_path):
    """A dead engine's entry stays for its service, and is deleted when the settings exclude that."""
    kept = journal(tmp_path)
    await kept.write(entry())
    for namespace, earlier in (("ns", {CHAT}), ("other", set())):
        settings = AgentSettings("h", tmp_path, tmp_path / "store", "/no/engine", namespace=namespace)
        async with open_local_ports(settings, SimpleNamespace(get=print)) as ports:
            assert set(ports.earlier) == set(kept.read_all()) == earlier


async def test_the_longest_name_can_be_written(tmp_path):
    """A service may have a name of 253 characters, and it is read back whole."""
    kept, key = journal(tmp_path), Key("ns", "a" * 253)
    known = entry()
    metadata = attrs.evolve(known.desired.service.metadata, name=key.name)
    desired = attrs.evolve(known.desired, service=attrs.evolve(known.desired.service, metadata=metadata))
    await kept.write(attrs.evolve(known, desired=desired))
    assert kept.read_all().keys() == {key}
    await kept.remove(key)
    assert kept.read_all() == {}


async def test_a_journal_that_cannot_be_opened_for_now_stops_the_start(tmp_path, monkeypatch):
    """Without descriptors an unreadable entry is an error: otherwise its engine would be ended as a stray."""
    kept = journal(tmp_path)
    await kept.write(entry())

    def read_text(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(JournalError, match="Too many open files"):
        kept.read_all()

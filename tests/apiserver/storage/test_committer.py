"""Writers who wait for the disk share a sync; nothing is shown or acknowledged before it, and a failure undoes all."""

from collections.abc import Callable, Sequence

import attrs
import pytest
import trio
import trio.testing

from llmkube.apiserver.storage.committer import Committer
from llmkube.apiserver.storage.revisions import Change, Object, Ref, Store, Transaction
from llmkube.apiserver.storage.write_ahead_log import StorageError
from llmkube.apiserver.values.api_errors import RequestRefusedError
from llmkube.k8s.resource import Key


@attrs.define(eq=False)
class Disk:
    """A disk whose syncs end when the test ends them."""

    synced: list[list[str]] = attrs.Factory(list)
    broken: bool = False
    gate: trio.Semaphore = attrs.Factory(lambda: trio.Semaphore(0))

    async def commit(self, changes: Sequence[Change]) -> None:
        names = [change.ref.key.name for change in changes]
        with trio.CancelScope(shield=True):
            await self.gate.acquire()
        if self.broken:
            raise StorageError("the disk is full")
        self.synced.append(names)


def ref(name: str) -> Ref:
    return Ref("maps", Key("a", name))


def put(name: str) -> Callable[[Transaction], Object]:
    return lambda tx: tx.put(ref(name), {"metadata": {"name": name, "uid": name}})


def names(store: Store) -> list[str]:
    return [key.name for key, _ in store.list("maps")]


async def test_writers_who_wait_share_the_next_sync():
    """While the first write is being synced the others gather; one sync serves them all, in their order."""
    disk, store, shown = Disk(), Store(), list[int]()
    committer = Committer(store, disk.commit, lambda changes: shown.append(len(changes)))
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(committer.write, put(f"m{number}"))
            await trio.testing.wait_all_tasks_blocked()
        assert names(store) == [], "shown before it is on the disk"
        disk.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert names(store) == ["m0"]
        disk.gate.release()
    assert disk.synced == [["m0"], ["m1", "m2", "m3", "m4"]]
    assert shown == [1, 4]
    assert [change.revision for change in store.changes_after("maps", 0)] == [1, 2, 3, 4, 5]


async def test_a_decision_sees_what_is_on_its_way_and_waits_for_it():
    """A writer finds an object that is not synced yet, and is answered, changing nothing, only when it is."""
    disk, store, answers = Disk(), Store(), list[str]()
    committer = Committer(store, disk.commit, lambda changes: None)

    async def look() -> None:
        found = await committer.write(lambda tx: tx.get(ref("m")))
        answers.append(str(found and found["metadata"]["name"]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.write, put("m"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        disk.gate.release()
    assert answers == ["m"]
    assert disk.synced == [["m"]]


async def test_a_failed_sync_undoes_what_was_decided_on_top_of_it():
    """All waiting writes are refused, nothing becomes visible, and the next write continues from the state on disk."""
    disk, store, refused = Disk(), Store(), list[int]()
    committer = Committer(store, disk.commit, lambda changes: None)
    disk.gate.release()
    await committer.write(put("kept"))
    disk.broken = True

    async def fail(name: str) -> None:
        with pytest.raises(RequestRefusedError) as caught:
            await committer.write(put(name))
        refused.append(caught.value.code)

    async with trio.open_nursery() as nursery:
        for name in ("first", "second", "third"):
            nursery.start_soon(fail, name)
            await trio.testing.wait_all_tasks_blocked()
        disk.gate.release()
    assert refused == [500, 500, 500]
    assert names(store) == ["kept"]
    disk.broken = False
    disk.gate.release()
    assert (await committer.write(put("next")))["metadata"]["resourceVersion"] == "2"
    assert names(store) == ["kept", "next"]
    assert await committer.write(lambda tx: tx.get(ref("second"))) is None


async def test_a_cancelled_writer_has_written():
    """Once decided, a write is synced and shown although the client is gone."""
    disk, store = Disk(), Store()
    committer = Committer(store, disk.commit, lambda changes: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.write, put("m"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        disk.gate.release()
    assert names(store) == ["m"]


async def test_a_refused_decision_and_a_dry_run_leave_nothing():
    """Neither reaches the disk, and neither is seen by the next decision."""
    disk, store = Disk(), Store()
    committer = Committer(store, disk.commit, lambda changes: None)

    def refuse(tx: Transaction) -> None:
        put("refused")(tx)
        raise RequestRefusedError(409, "Conflict", "no")

    with pytest.raises(RequestRefusedError):
        await committer.write(refuse)
    await committer.write(put("dry"), dry_run=True)
    assert await committer.write(lambda tx: (tx.get(ref("refused")), tx.get(ref("dry")))) == (None, None)
    assert disk.synced == []


async def test_a_long_decision_holds_up_other_writes_and_nothing_else():
    """While one write is decided elsewhere the next one waits for it; both rest on all before them."""
    store, gate = Store(), trio.Event()

    async def slowly(function):
        await gate.wait()
        return function()

    committer = Committer(store, None, lambda changes: None, slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.write, put("first"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(committer.write, put("second"))
        await trio.testing.wait_all_tasks_blocked()
        assert names(store) == []
        gate.set()
    assert [store.get(ref(name))["metadata"]["resourceVersion"] for name in ("first", "second")] == ["1", "2"]


async def test_a_long_decision_is_made_again_when_what_it_rests_on_was_not_written():
    """A sync that fails meanwhile takes its writes back: the decision sees the state without them."""
    disk, store, gate, seen = Disk(), Store(), trio.Event(), []

    def decide(tx: Transaction) -> Object:
        seen.append(tx.get(ref("lost")) is not None)
        return put("kept")(tx)

    async def slowly(function):
        decision = function()
        if seen:  # made by `decide`
            await gate.wait()
        return decision

    committer = Committer(store, disk.commit, lambda changes: None, slowly)

    async def lose() -> None:
        with pytest.raises(RequestRefusedError):
            await committer.write(put("lost"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(committer.write, decide)
        await trio.testing.wait_all_tasks_blocked()
        disk.broken = True
        disk.gate.release()
        await trio.testing.wait_all_tasks_blocked()
        disk.broken = False
        gate.set()
        disk.gate.release()
    assert (seen, names(store)) == ([True, False], ["kept"])

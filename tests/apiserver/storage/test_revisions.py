"""The store: revisions, the log, snapshots of the past, transactions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.apiserver.storage.revisions import CompactedError, Ref, Store, Transaction
from llmkube.k8s.resource import Key


def ref(name: str, kind: str = "things", namespace: str = "ns") -> Ref:
    return Ref(kind, Key(namespace, name))


def thing(name: str, value: int = 0, *, owners: tuple[str, ...] = ()) -> dict:
    metadata = {"name": name, "uid": f"uid-{name}"}
    if owners:
        metadata["ownerReferences"] = [{"uid": owner} for owner in owners]
    return {"metadata": metadata, "value": value}


def put(store: Store, name: str, value: int = 0, **more) -> None:
    tx = Transaction(store)
    tx.put(ref(name), thing(name, value, **more))
    store.apply(tx.changes)


def remove(store: Store, name: str) -> None:
    tx = Transaction(store)
    tx.remove(ref(name), store.get(ref(name)))
    store.apply(tx.changes)


def names(items) -> list[str]:
    return [key.name for key, _ in items]


def test_staged_writes_are_visible_in_their_transaction_only():
    """They become visible to others when they are applied."""
    store = Store()
    tx = Transaction(store)
    tx.put(ref("a"), thing("a", 1))
    tx.put(ref("a"), thing("a", 2))
    assert tx.get(ref("a"))["value"] == 2
    assert store.get(ref("a")) is None
    store.apply(tx.changes)
    assert [change.before is None for change in store.changes_after("things", 0)] == [True, False]
    assert store.get(ref("a"))["metadata"]["resourceVersion"] == "2"


def test_a_dry_run_draws_no_revision():
    """A dry run shows the version that is there, and none for what is not."""
    store = Store()
    put(store, "a")
    tx = Transaction(store, dry_run=True)
    assert tx.put(ref("a"), thing("a", 5))["metadata"]["resourceVersion"] == "1"
    assert "resourceVersion" not in tx.put(ref("b"), thing("b"))["metadata"]


def test_a_full_log_drops_the_oldest_and_reports_it():
    """A reader behind the window gets an error that names the oldest revision, one at its edge gets the rest."""
    store = Store(window=2)
    for value in range(4):
        put(store, "a", value)
    assert [change.revision for change in store.changes_after("things", 2)] == [3, 4]
    with pytest.raises(CompactedError, match=r"too old resource version: 1 \(2\)"):
        store.changes_after("things", 1)


def test_a_restart_forgets_the_past_and_keeps_counting():
    """A store that starts at a revision refuses to speak of what was before it, for every kind."""
    store = Store(7, [(ref("a"), thing("a"))])
    for kind in ("things", "others"):
        with pytest.raises(CompactedError):
            store.changes_after(kind, 6)
        assert not store.changes_after(kind, 7)
    put(store, "b")
    assert store.revision == 8


def test_compaction_is_a_forgotten_past():
    """After compact() nothing older than now can be read, and new changes can."""
    store = Store()
    put(store, "a")
    store.compact()
    with pytest.raises(CompactedError):
        store.changes_after("things", 0)
    put(store, "b")
    assert len(store.changes_after("things", 1)) == 1


def test_indexes_follow_owners_and_uids():
    """Dependents and uids are found while they are there and not afterwards."""
    store = Store()
    put(store, "owner")
    put(store, "child", owners=("uid-owner",))
    assert store.by_uid("uid-owner") == ref("owner")
    assert store.dependents("uid-owner") == [ref("child")]
    remove(store, "owner")
    assert store.by_uid("uid-owner") is None
    put(store, "child")
    assert store.dependents("uid-owner") == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30))
def test_every_past_moment_can_be_listed_again(writes):
    """list_at() of any remembered revision is what list() said at that revision."""
    store = Store()
    history = {0: []}
    for name, value in writes:
        if value == 0 and store.get(ref(name)) is not None:
            remove(store, name)
        else:
            put(store, name, value)
        history[store.revision] = store.list("things")
    for revision, items in history.items():
        assert store.list_at("things", "", revision) == items
        assert store.list_at("things", "elsewhere", revision) == []

"""A state of an object is decoded once per API server."""

import pytest

from k8s.scripted import ScriptedServer, config_map, event, ok, watching
from llmkube.k8s.builtins import ConfigMap, Secret
from llmkube.k8s.codec import MAX_STATES, DecodeError, VersionDecoder, encode

UID = "0f3c"


def state(version, **data):
    """Return a ConfigMap as a server has it, managedFields included."""
    found = config_map("a", version, **data)
    return {**found, "metadata": {**found["metadata"], "uid": UID, "managedFields": [{"manager": "kubectl"}]}}


def test_a_state_is_one_object():
    """The same uid and version give the same object, without managedFields; another of either gives another one."""
    decoder = VersionDecoder()
    one, other = decoder.decode(ConfigMap, state(5, x="1")), state(5, x="1")
    assert decoder.decode(ConfigMap, other) is one
    assert "managedFields" not in encode(one)["metadata"]
    assert decoder.decode(ConfigMap, state(6, x="2")).data == {"x": "2"}
    other["metadata"]["uid"] = "another"
    assert decoder.decode(ConfigMap, other) is not one
    assert VersionDecoder().decode(ConfigMap, state(5, x="1")) is not one


def test_kinds_are_kept_apart():
    """Versions known to one class are unknown to another."""
    decoder, raw = VersionDecoder(), state(5)
    del raw["kind"], raw["apiVersion"]
    assert isinstance(decoder.decode(ConfigMap, raw), ConfigMap)
    assert isinstance(decoder.decode(Secret, raw), Secret)


@pytest.mark.parametrize("missing", ["uid", "resourceVersion"])
def test_an_object_without_a_version_is_read_again(missing):
    """Two objects that do not say which state they are in are two."""
    decoder, one, other = VersionDecoder(), state(5, x="1"), state(5, x="2")
    del one["metadata"][missing], other["metadata"][missing]
    assert decoder.decode(ConfigMap, one).data != decoder.decode(ConfigMap, other).data


@pytest.mark.parametrize("metadata", [7, {"uid": [], "resourceVersion": "1"}, {"uid": "a", "resourceVersion": {}}, []])
def test_malformed_metadata_is_a_decode_error(metadata):
    """A value of the wrong type in place of a version is a DecodeError and ends no watch."""
    with pytest.raises(DecodeError, match="metadata"):
        VersionDecoder().decode(ConfigMap, {"kind": "ConfigMap", "metadata": metadata})


def test_only_the_newest_states_are_remembered():
    """The memory is bounded; a state that is forgotten is decoded again."""
    decoder = VersionDecoder()
    first = decoder.decode(ConfigMap, state(1))
    for version in range(2, MAX_STATES + 2):
        decoder.decode(ConfigMap, state(version))
    again = decoder.decode(ConfigMap, state(1))
    assert again == first
    assert again is not first


def test_a_malformed_state_is_an_error_each_time():
    """An unreadable object is not remembered."""
    decoder = VersionDecoder()
    for _ in range(2):
        with pytest.raises(DecodeError, match="data"):
            decoder.decode(ConfigMap, {**state(5), "data": 7})


async def test_watches_and_writes_of_a_client_share_what_they_read():
    """The answer to a write and the events that repeat it are one object; another client has its own."""
    server = ScriptedServer(watching(event("ADDED", state(5)), event("MODIFIED", state(6))), ok(state(6)))
    client = server.client()
    async with client.open_watch(ConfigMap, resource_version="1") as watch:
        added, modified = await watch.next_event(), await watch.next_event()
        written = await client.apply(ConfigMap, {"metadata": {"name": "a", "namespace": "default"}}, field_manager="me")
    assert written is modified.object is not added.object

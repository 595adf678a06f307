import attrs
import pytest

from llmkube.k8s.resource import Key
from llmkube.k8s.wire.reasons import Meaning, Reason
from llmkube.programs.one_machine import AgentDirectory
from llmkube.router.backends import Backend, State, UnavailableModel
from llmkube.supervisor.values.lifecycle import ServiceView

READY = ServiceView(Reason.LOADED, "", "127.0.0.1", 51234, 7, "chat")
LOADING = ServiceView(Reason.LOADING, "the engine is loading\nmore", "127.0.0.1", 51235, 8, "embed")


def directory(**services):
    found = {Key.parse(key.replace("__", "/")): view for key, view in services.items()}
    return AgentDirectory(lambda: found, lambda: 1)


def test_names_are_short_while_they_are_unique():
    """The id of a service is its name, and namespace/name only where another has the same name."""
    found = directory(default__chat=READY, other__chat=READY, default__embed=LOADING)
    assert found.model_ids() == ["default/chat", "embed", "other/chat"]


def test_a_ready_service_is_found_by_both_forms():
    """The short and the long form lead to the same engine."""
    found = directory(default__chat=READY)
    engine = Backend("127.0.0.1", 51234, "chat", service="default/chat")
    assert found.lookup("chat") == found.lookup("default/chat") == engine


def test_an_ambiguous_name_is_no_model():
    """A short name of two services leads to neither; the long forms do."""
    found = directory(a__chat=READY, b__chat=LOADING)
    assert found.lookup("chat") is None
    assert isinstance(found.lookup("a/chat"), Backend)


def test_a_loading_service_is_unavailable_with_its_reason():
    """The first line of its message is included."""
    found = directory(default__embed=LOADING).lookup("embed")
    assert found == UnavailableModel("Loading", "the engine is loading", 2)


def test_an_unknown_name_is_no_model():
    """Neither an unknown name nor an empty one matches a service."""
    found = directory(default__chat=READY)
    assert found.lookup("other") is None
    assert found.lookup("") is None


def test_every_lookup_sees_the_current_state():
    """A service that becomes ready is found at the next lookup, and lookups in between take no new snapshot."""
    services, snapshots, version = {Key("default", "chat"): LOADING}, [], 1

    def take():
        snapshots.append(version)
        return services

    found = AgentDirectory(take, lambda: version)
    assert [type(found.lookup("chat")) for _ in range(3)] == [UnavailableModel] * 3
    services[Key("default", "chat")] = READY
    version = 2
    assert [type(found.lookup("chat")) for _ in range(3)] == [Backend] * 3
    assert snapshots == [1, 2]


@pytest.mark.parametrize("reason", Reason)
def test_retry_after_is_sent_for_a_model_that_will_be_ready(reason):
    """A model that waits for a person has no Retry-After."""
    found = directory(default__chat=ServiceView(reason)).lookup("chat")
    if reason is Reason.LOADED:
        assert isinstance(found, Backend)
    else:
        patient = reason.meaning in {Meaning.STOPPED, Meaning.USER, Meaning.HOST}
        assert (found.retry_after_seconds is None) == patient
        assert found.failed == reason.meaning.is_failing
        is_moving = reason.meaning in {Meaning.FINE, Meaning.WAITING, Meaning.RECOVERING} and reason is not Reason.IDLE
        assert (found.state is State.LOADING) == is_moving


def test_an_alias_leads_to_its_service_unless_it_is_ambiguous():
    """A name wins over an alias, and an alias of two services leads to neither."""
    a = attrs.evolve(READY, aliases=("qwen3.5-4b", "embed", "both"))
    b = attrs.evolve(LOADING, aliases=("both", "org/small"))
    found = directory(default__chat=a, default__embed=b)
    assert found.aliases() == ["org/small", "qwen3.5-4b"]
    assert found.lookup("qwen3.5-4b") == found.lookup("chat")
    assert isinstance(found.lookup("embed"), UnavailableModel)
    assert isinstance(found.lookup("org/small"), UnavailableModel)
    assert found.lookup("both") is None

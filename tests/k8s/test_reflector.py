"""Whatever happens to the watch, the cache tells the truth or what was last true, and never forgets by accident."""

import random

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from k8s.scripted import ScriptedServer, bookmark, config_map, event, html, listing, status, status_object, watching
from llmkube.base.backoff import Backoff
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import Listing
from llmkube.k8s.reflector import RECHECK_SECONDS, Cache, is_older, newer_position, run_reflector
from llmkube.k8s.resource import Key
from llmkube.k8s.watch import READ_IDLE_SECONDS, WatchEvent

STEADY = Backoff(base_seconds=1.0, cap_seconds=8.0, jitter=0.0)
A, B, C, D = (Key("default", name) for name in "abcd")


@attrs.define(eq=False)
class Reflection:
    """A running reflector, its cache, and every notification with the state that the listener could see."""

    server: ScriptedServer
    cache: Cache[ConfigMap] = attrs.field(factory=Cache)
    notified: list[tuple[str, str | None]] = attrs.field(factory=list)

    def notify(self, key):
        obj = self.cache.get(key)
        self.notified.append((key.name, obj and obj.metadata.resource_version))

    @property
    def state(self):
        return {key.name: obj.metadata.resource_version for key, obj in self.cache.items()}

    @property
    def times(self):
        return [(call.verb, round(call.at - self.server.calls[0].at, 1)) for call in self.server.calls]


async def reflect(*answers, until=1000.0, backoff=STEADY, **options):
    """Run a reflector against a script for so many virtual seconds, then look."""
    found = Reflection(ScriptedServer(*answers))
    with trio.move_on_after(until):
        await run_reflector(
            found.server.client(),
            ConfigMap,
            found.cache,
            found.notify,
            rng=random.Random(7),
            backoff=backoff,
            **options,
        )
    return found


async def test_a_list_and_its_watch_fill_the_cache(autojump_clock):
    """Listed, then added, changed and deleted objects are in the cache before their keys are notified."""
    found = await reflect(
        listing(10, config_map("a", 1), config_map("b", 2)),
        watching(
            event("ADDED", config_map("c", 11)),
            event("MODIFIED", config_map("a", 12)),
            event("DELETED", config_map("b", 13)),
            None,
        ),
        until=50,
    )
    assert found.cache.synced.is_set()
    assert found.state == {"a": "12", "c": "11"}
    assert found.notified == [("a", "1"), ("b", "2"), ("c", "11"), ("a", "12"), ("b", None)]
    assert found.server.calls[1].params["resourceVersion"] == "10"
    assert (B in found.cache, A in found.cache, len(found.cache)) == (False, True, 2)
    assert {obj.metadata.name for obj in found.cache.values()} == {"a", "c"}


async def test_a_clean_close_resumes_without_a_list(autojump_clock):
    """After the server ends a watch, the next one starts at once from the last event or bookmark."""
    found = await reflect(
        listing(10, config_map("a", 1)),
        watching(event("MODIFIED", config_map("a", 11)), 60.0, bookmark(40), 60.0),
        watching(60.0),
        watching(None),
        until=200,
    )
    assert found.server.verbs == ["list", "watch", "watch", "watch"]
    assert [call.params.get("resourceVersion") for call in found.server.calls[1:]] == ["10", "40", "40"]
    assert found.times[1:] == [("watch", 0), ("watch", 120), ("watch", 180)]


async def test_watch_lengths_are_spread(autojump_clock):
    """Each watch asks for 240 to 300 seconds, and not always for the same."""
    full = listing(10, config_map("a", 1))
    found = await reflect(full, *[watching(bookmark(11), 60.0) for _ in range(9)], until=600)
    lengths = {int(call.params["timeoutSeconds"]) for call in found.server.calls[1:]}
    assert len(lengths) > 3
    assert all(240 <= length <= 300 for length in lengths)


GONE = [
    pytest.param(status(410, "Expired"), id="status"),
    pytest.param(status(410, "Gone"), id="status-gone"),
    pytest.param(watching(event("ERROR", status_object(410, "Expired"))), id="event"),
]


@pytest.mark.parametrize("gone", GONE)
async def test_gone_means_one_new_list(gone, autojump_clock):
    """A 410, as a status or as an ERROR event, leads to exactly one list, whose differences are notified."""
    found = await reflect(
        listing(10, config_map("a", 1), config_map("b", 2), config_map("c", 3)),
        gone,
        listing(50, config_map("a", 1), config_map("c", 45), config_map("d", 46)),
        watching(None),
        until=60,
    )
    assert found.times == [("list", 0), ("watch", 0), ("list", 1), ("watch", 1)]
    assert found.notified[3:] == [("b", None), ("c", "45"), ("d", "46")]
    assert found.server.calls[-1].params["resourceVersion"] == "50"


@pytest.mark.parametrize(
    "poison",
    [
        watching(b"<html>Please log in</html>\n"),
        watching(b'{"type":"ADDED","object":{"kind":"Secret"}}\n'),
        watching(*[b"x" * 1_000_000] * 20),
        watching(event("ADDED", config_map("", 11))),
    ],
)
async def test_poison_in_a_watch_leads_to_a_list(poison, autojump_clock):
    """An event that would fail in each resumed watch is skipped by a list."""
    found = await reflect(
        listing(10, config_map("a", 1)), poison, listing(12, config_map("a", 11)), watching(None), until=60
    )
    assert found.server.verbs == ["list", "watch", "list", "watch"]
    assert found.state == {"a": "11"}


async def test_a_half_open_connection_is_replaced(autojump_clock):
    """A connection that falls silent after it spoke is given up at the read-idle deadline, and the watch resumes."""
    found = await reflect(
        listing(10, config_map("a", 1)), watching(bookmark(11), None), watching(None), until=READ_IDLE_SECONDS + 5
    )
    assert found.times == [("list", 0), ("watch", 0), ("watch", READ_IDLE_SECONDS + 1)]


async def test_a_position_from_the_future_heals(autojump_clock):
    """A watch that is accepted and then stays silent is followed by a list, even if this continues for hours.

    That is how kube-apiserver meets a resourceVersion that a restored etcd has not reached yet.
    """
    restored = [listing(50, config_map("a", 40)) for _ in range(2)]  # an older list is read twice
    found = await reflect(
        listing(100, config_map("a", 90)),
        watching(None),
        *restored,
        watching(event("MODIFIED", config_map("a", 51)), None),
        until=READ_IDLE_SECONDS + 20,
    )
    assert found.times[2:] == [("list", 91), ("list", 101), ("watch", 101)]
    assert found.server.calls[-1].params["resourceVersion"] == "50"
    assert found.state == {"a": "51"}

    mute = [answer for _ in range(40) for answer in (watching(None), listing(10))]
    found = await reflect(listing(10), *mute, until=3600)
    assert found.server.verbs == ["list", "watch"] * (3600 // 91 + 1)


@pytest.mark.parametrize("end", [(), (httpx.ReadError("reset"),)])
async def test_watches_that_are_cut_before_they_speak_heal_too(end, autojump_clock):
    """A proxy that ends every watch after a minute hides a bad position for three minutes at most."""
    found = await reflect(
        listing(100, config_map("a", 90)),
        *[watching(60.0, *end) for _ in range(3)],
        listing(101, config_map("a", 101)),
        watching(None),
        until=200,
    )
    assert found.server.verbs == ["list", "watch", "watch", "watch", "list", "watch"]
    assert found.state == {"a": "101"}


async def test_one_event_makes_a_position_valid(autojump_clock):
    """As long as some watch in three brings as much as a bookmark, nothing is ever listed again."""
    spoken = (watching(60.0), watching(60.0), watching(55.0, bookmark(11), 5.0))
    full = listing(10, config_map("a", 1))
    found = await reflect(full, *spoken, *(watching(60.0) for _ in range(2)), watching(None), until=300)
    assert "list" not in found.server.verbs[1:]


async def test_a_reset_resumes_and_backs_off(autojump_clock):
    """Connections that break at once are retried after 1 and 2 seconds from the same place, then listed again."""
    resets = [watching(httpx.ReadError("reset")) for _ in range(3)]
    found = await reflect(
        listing(10, config_map("a", 1)), *resets, listing(10, config_map("a", 1)), watching(None), until=30
    )
    assert found.times == [("list", 0), ("watch", 0), ("watch", 1), ("watch", 3), ("list", 7), ("watch", 7)]
    assert found.notified == [("a", "1")]


async def test_back_off_starts_afresh_after_a_good_watch(autojump_clock):
    """A failure after ten good seconds waits the shortest delay again, however many came before."""
    reset = httpx.ReadError("reset")
    found = await reflect(
        listing(10, config_map("a", 1)),
        watching(reset),
        watching(reset),
        watching(20.0, bookmark(11), reset),
        watching(reset),
        watching(None),
        until=60,
    )
    assert found.times == [("list", 0), ("watch", 0), ("watch", 1), ("watch", 3), ("watch", 24), ("watch", 26)]


async def test_a_server_that_closes_at_once_is_not_hammered(autojump_clock):
    """Clean ends without any life in between are backed off from like failures."""
    found = await reflect(listing(10, config_map("a", 1)), watching(), watching(), watching(), until=5)
    assert found.times == [("list", 0), ("watch", 0), ("watch", 1), ("watch", 3)]


FAILURES = [
    httpx.ConnectError("refused"),
    status(500, "InternalError"),
    status(503, "ServiceUnavailable"),
    status(403, "Forbidden"),
    status(401, "Unauthorized"),
    status(404, "NotFound"),
    httpx.Response(404, text="404 page not found"),
    html(200),
    html(404),
    httpx.Response(302, headers={"location": "http://portal"}),
    httpx.Response(200, json={"kind": "Status", "code": 200}),
    httpx.Response(200, json={"kind": "ConfigMapList", "metadata": {}, "items": []}),
    listing(20, config_map("a", 1), config_map("", 2)),
]


@pytest.mark.parametrize("failure", FAILURES)
async def test_no_failure_of_a_list_clears_the_cache(failure, autojump_clock):
    """Refusals, pages, redirects and 404s leave every object where it was, and the reflector alive."""
    found = await reflect(
        listing(10, config_map("a", 1), config_map("b", 2)),
        status(410, "Expired"),
        *[failure] * 4,
        listing(20, config_map("a", 1), config_map("b", 19)),
        watching(None),
        until=80,
    )
    assert found.notified == [("a", "1"), ("b", "2"), ("b", "19")]
    assert found.server.verbs[-1] == "watch"


async def test_a_day_without_a_server_changes_nothing(autojump_clock):
    """After 24 hours of refused connections the cache is as it was, and the attempts were one per longest delay."""
    refused = [httpx.ConnectError("refused")] * 2_000
    slow = Backoff(base_seconds=1.0, cap_seconds=120.0, jitter=0.0)
    found = await reflect(listing(10, config_map("a", 1)), watching(60.0), *refused, until=86_400, backoff=slow)
    assert found.state == {"a": "1"}
    assert 720 <= len(found.server.calls) <= 735


PAIR = [config_map("a", 1), config_map("b", 2)]


@pytest.mark.parametrize(
    ("lists", "after", "notified"),
    [
        pytest.param(
            [listing(10, *PAIR), listing(20), listing(20, *PAIR)],
            [],
            [("a", "1"), ("b", "2")],
            id="wrongly empty",
        ),
        pytest.param(
            [listing(10, *PAIR), listing(20), listing(20)],
            [],
            [("a", "1"), ("b", "2"), ("a", None), ("b", None)],
            id="really empty",
        ),
        pytest.param(
            [listing(100, config_map("a", 90)), listing(50, config_map("a", 40)), listing(50, config_map("a", 40))],
            [event("MODIFIED", config_map("a", 51))],
            [("a", "90"), ("a", "40"), ("a", "51")],
            id="a restored backup",
        ),
        pytest.param(
            [listing(100, config_map("a", 90)), listing(50, config_map("a", 40)), listing(101, config_map("a", 90))],
            [],
            [("a", "90")],
            id="a server that lagged",
        ),
    ],
)
async def test_a_doubtful_list_is_confirmed_before_it_is_believed(lists, after, notified, autojump_clock):
    """A list that is suddenly empty, or from the past, is read again, and what the second read says is the truth."""
    found = await reflect(lists[0], status(410, "Expired"), *lists[1:], watching(*after, None), until=60)
    assert found.times[2:] == [("list", 1), ("list", 11), ("watch", 11)]
    assert found.notified == notified
    assert found.server.calls[-1].params["resourceVersion"] == lists[-1].json()["metadata"]["resourceVersion"]


async def test_what_two_lists_have_denied_is_looked_for_again(autojump_clock):
    """A server that denies everything twice, with a good resourceVersion, costs the copy a minute, not its life."""
    full = [config_map("a", 1), config_map("b", 2)]
    found = await reflect(
        listing(10, *full),
        status(410, "Expired"),
        listing(20),
        listing(20),
        watching(bookmark(21), 60.0),
        listing(21, *full),
        *[answer for _ in range(4) for answer in (watching(bookmark(22), 60.0), listing(22, *full))],
        watching(None),
        until=400,
    )
    assert found.state == {"a": "1", "b": "2"}
    assert found.times[2:7] == [("list", 1), ("list", 11), ("watch", 11), ("list", 71), ("watch", 71)]
    assert found.server.verbs.count("list") == 3 + len(RECHECK_SECONDS)
    assert int(found.server.calls[-1].params["timeoutSeconds"]) > max(RECHECK_SECONDS)


async def test_an_empty_first_list_is_read_again_later(autojump_clock):
    """Objects missing from the first list are known a minute later, even without an event."""
    found = await reflect(
        listing(10), watching(bookmark(11), 60.0), listing(11, config_map("a", 1)), watching(None), until=100
    )
    assert found.times == [("list", 0), ("watch", 0), ("list", 60), ("watch", 60)]
    assert found.state == {"a": "1"}


FOUR = [config_map(name, 1) for name in "abcd"]


def deleted(names, version=20):
    return b"".join(event("DELETED", config_map(name, version)) for name in names)


async def test_deletions_of_most_are_confirmed_by_a_list(autojump_clock):
    """A watch that tells more than half as deleted is followed on; 10 s later a list says which of them are there."""
    found = await reflect(
        listing(10, *FOUR),
        watching(5.0, deleted("abc"), 1.0, event("MODIFIED", config_map("d", 21)), None),
        listing(30, config_map("b", 1), config_map("d", 21)),
        watching(None),
        cautious=True,
        until=60,
    )
    assert found.times == [("list", 0), ("watch", 0), ("list", 15), ("watch", 15)]
    assert found.notified[4:] == [("a", "1"), ("b", "1"), ("c", "1"), ("d", "21"), ("a", None), ("c", None)]
    assert found.state == {"b": "1", "d": "21"}
    assert not found.cache.unconfirmed


async def test_a_doubt_outlives_its_watch(autojump_clock):
    """Until the list is due nothing is forgotten, even when the watch breaks off before, and the list once fails."""
    found = await reflect(
        listing(10, *FOUR),
        watching(deleted("abcd"), 2.0, httpx.ReadError("reset")),
        html(),
        listing(30),
        watching(None),
        cautious=True,
        until=60,
    )
    assert found.times[2:4] == [("list", 10), ("list", 12)]
    assert found.state == {}


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        pytest.param([deleted("ab")], "cd", id="half"),
        pytest.param([deleted("a"), 1.0, deleted("b"), 1.0, deleted("c")], "cd", id="most, one by one"),
        pytest.param([deleted("a"), 6.0, deleted("b"), 6.0, deleted("c")], "d", id="with pauses"),
        pytest.param([deleted("a") + event("ADDED", config_map("a", 21)) + deleted("bc", 22)], "ad", id="made again"),
        pytest.param([deleted("abcd", 0)], "abcd", id="no news"),
        pytest.param([deleted("wxyz")], "abcd", id="unknown"),
    ],
)
async def test_what_a_watch_may_delete_at_once(steps, left, autojump_clock):
    """Deletions are believed at once up to half of what there was before the first of those close together."""
    found = await reflect(listing(10, *FOUR), watching(*steps, None), cautious=True, until=20)
    assert "".join(sorted(found.state)) == left


async def test_deletions_are_believed_without_the_brake(autojump_clock):
    """Without the brake a deletion applies at once."""
    found = await reflect(listing(10, *FOUR), watching(deleted("abcd"), None), until=5)
    assert found.state == {}


async def test_a_confirmation_that_fails_confirms_nothing(autojump_clock):
    """When the second read is a page of HTML, nothing is deleted."""
    found = await reflect(listing(10, config_map("a", 1)), status(410, "Expired"), listing(20), html(), until=12)
    assert found.state == {"a": "1"}


async def test_an_empty_first_list_needs_no_confirmation(autojump_clock):
    """A cluster without objects is synced after one list."""
    found = await reflect(listing(10), watching(None), until=10)
    assert found.server.verbs == ["list", "watch"]
    assert found.cache.synced.is_set()


async def test_a_list_that_hangs_is_given_up(autojump_clock):
    """A list without an answer is tried again after a minute; `synced` stays unset meanwhile."""
    found = await reflect(until=130)
    assert found.times == [("list", 0), ("list", 61), ("list", 123)]
    assert not found.cache.synced.is_set()


@pytest.mark.parametrize(
    ("name", "namespace"), [("../../x", "default"), ("/x", "default"), ("a", "/home/u"), ("a", "..")]
)
async def test_an_object_whose_name_leads_out_of_a_folder_is_taken_by_no_host(autojump_clock, name, namespace):
    """An API server that sends such a name is none that this host may let write to its disk."""
    hostile = config_map("a", 2)
    hostile["metadata"] |= {"name": name, "namespace": namespace}
    found = await reflect(listing(10, config_map("b", 1), hostile), watching(None), until=2)
    assert [key.name for key, _ in found.cache.items()] == ["b"]
    assert "DNS-1123" in str(found.cache.decode_error(Key(namespace, name)))


async def test_an_object_of_the_cluster_has_no_namespace(autojump_clock):
    """Only the names of nodes and the like are checked: they lie in no namespace."""
    node = config_map("node-1", 1)
    del node["metadata"]["namespace"]
    found = await reflect(listing(10, node), watching(None), until=2)
    assert found.state == {"node-1": "1"}


async def test_an_unreadable_object_is_reported_and_hides_no_other(autojump_clock):
    """A malformed object keeps its last readable state, says what is wrong, and heals."""
    broken = {**config_map("a", 11), "data": 7}
    answers = [
        listing(10, config_map("a", 1), {**config_map("b", 2), "data": 7}),
        watching(event("MODIFIED", broken), 5.0, event("MODIFIED", config_map("a", 12)), None),
    ]
    found = await reflect(*answers, until=3)
    assert found.notified == [("a", "1"), ("b", None), ("a", "1")]
    assert "data" in str(found.cache.decode_error(A))
    assert "data" in str(found.cache.decode_error(B))
    found = await reflect(
        answers[0], watching(event("MODIFIED", broken), event("MODIFIED", config_map("a", 12)), None), until=3
    )
    assert found.notified[-1] == ("a", "12")
    assert found.cache.decode_error(A) is None


async def test_a_bug_in_a_listener_is_not_swallowed(autojump_clock):
    """An error raised by `notify` ends the reflector."""

    def explode(key):
        raise ZeroDivisionError

    server = ScriptedServer(listing(10, config_map("a", 1)))
    with pytest.raises(ZeroDivisionError):
        await run_reflector(server.client(), ConfigMap, Cache(), explode, rng=random.Random(1))


async def test_scope_reaches_list_and_watch(autojump_clock):
    """Namespace and label selector go with every request."""
    found = await reflect(listing(10), watching(None), until=5, namespace="team", label_selector="a=b")
    for call in found.server.calls:
        assert call.path == "/api/v1/namespaces/team/configmaps"
        assert call.params["labelSelector"] == "a=b"


# -- the cache alone, without a clock ---------------------------------------------------------------------------------


def filled(version, *items):
    cache = Cache()
    cache.replace(Listing(ConfigMap, items, str(version)))
    return cache


@pytest.mark.parametrize(
    ("event_type", "obj", "news", "left"),
    [
        ("MODIFIED", config_map("a", 5), False, "5"),  # duplicate
        ("ADDED", config_map("a", 4), False, "5"),  # older
        ("MODIFIED", config_map("a", 6), True, "6"),
        ("DELETED", config_map("a", 4), False, "5"),  # of an earlier incarnation
        ("DELETED", config_map("a", 6), True, None),
        ("DELETED", config_map("a", 5), True, None),  # a server that stamps deletions with the last version
        ("DELETED", config_map("z", 11), False, "5"),
        ("BOOKMARK", {"metadata": {"resourceVersion": "12"}}, False, "5"),
        ("MODIFIED", config_map("a", "opaque"), True, "opaque"),
    ],
)
def test_only_news_is_applied(event_type, obj, news, left):
    """Duplicates, older states and replayed deletions change nothing; everything else does."""
    cache = filled(10, config_map("a", 5))
    assert cache.apply(WatchEvent(ConfigMap, event_type, obj)) is news
    held = cache.get(A)
    assert (held and held.metadata.resource_version) == left


def test_a_replayed_event_does_not_raise_the_dead():
    """An ADDED from before a DELETED does not bring the object back, a recreation does."""
    cache = filled(10, config_map("a", 5))
    cache.apply(WatchEvent(ConfigMap, "DELETED", config_map("a", 12)))
    assert not cache.apply(WatchEvent(ConfigMap, "MODIFIED", config_map("a", 11)))
    assert A not in cache
    assert cache.apply(WatchEvent(ConfigMap, "ADDED", config_map("a", 13)))
    assert A in cache


@pytest.mark.parametrize(
    ("known", "listed", "version", "doubtful"),
    [
        ("", "", 20, False),
        ("", "abc", 20, False),
        ("a", "", 20, True),
        ("ab", "b", 20, False),
        ("abc", "c", 20, True),
        ("abc", "xyz", 20, True),
        ("abcd", "cd", 20, False),
        ("ab", "ab", 9, True),
        ("ab", "ab", 10, False),
        ("ab", "ab", "opaque", False),
    ],
)
def test_a_list_is_doubtful_when_it_loses_most_or_goes_back(known, listed, version, doubtful):
    """Losing more than half, or an older resourceVersion, needs a second opinion; nothing else does."""
    cache = filled(10, *(config_map(name, 1) for name in known))
    assert cache.is_suspect(Listing(ConfigMap, tuple(config_map(n, 1) for n in listed), str(version))) is doubtful


def test_managed_fields_are_not_kept():
    """The cache leaves out managedFields, which are unused and double an object's size."""
    obj = config_map("a", 5)
    obj["metadata"]["managedFields"] = [{"manager": "kubectl", "fieldsV1": {"f:data": {}}}]
    cache = filled(10, obj)
    assert cache.get(A).metadata.managed_fields == ()
    assert obj["metadata"]["managedFields"]


@pytest.mark.parametrize(
    ("version", "than", "older"),
    [("9", "10", True), ("10", "9", False), ("10", "10", False), ("", "1", False), ("1", "", False), ("x", "y", False)],
)
def test_versions_are_compared_as_numbers_or_not_at_all(version, than, older):
    """9 is older than 10; what is no number is older than nothing."""
    assert is_older(version, than) is older


@given(st.lists(st.integers(0, 10**6)))
def test_the_position_never_goes_back(versions):
    """Whatever versions events carry, the place to resume from never decreases."""
    position = ""
    for version in versions:
        position, before = newer_position(position, str(version)), position
        assert not is_older(position, before)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete"])), max_size=30),
    st.lists(st.integers(0, 29), max_size=30),
)
def test_replayed_histories_end_in_the_same_state(writes, replays):
    """Whatever part of the past a server replays between two events, the cache ends as the server did."""
    truth, history = {}, []
    for version, (name, what) in enumerate(writes, start=1):
        if what == "put":
            history.append(WatchEvent(ConfigMap, "MODIFIED" if name in truth else "ADDED", config_map(name, version)))
            truth[name] = str(version)
        elif name in truth:
            history.append(WatchEvent(ConfigMap, "DELETED", config_map(name, version)))
            del truth[name]
    cache = filled(0)
    for position, one in enumerate(history):
        cache.apply(one)
        for replay in replays:
            if replay <= position:
                cache.apply(history[replay])
    assert {key.name: obj.metadata.resource_version for key, obj in cache.items()} == truth

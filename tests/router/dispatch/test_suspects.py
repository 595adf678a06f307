"""Classes of failures: the client's, those of one tenant, and requests that end engines."""

import json
import random

import pytest
import trio

from llmkube.router.dispatch import suspects
from llmkube.router.dispatch.circuits import Circuit, Circuits, State, pauses_of
from llmkube.router.policy.request_facts import Principal
from llmkube.router.proxy import handler
from router.proxy import router_lab as rl

TWO = rl.config_of(rl.local("a"), rl.local("b"), rl.local("c"))
OTHER = {"x-tenant": "other"}


@pytest.fixture(autouse=True)
def tenants(monkeypatch):
    """The tenant of a request is that of its header."""
    monkeypatch.setattr(
        handler, "principal_of", lambda lines, _peer, _clients: Principal(tenant=lines.get("x-tenant") or "one")
    )


def code_of(response):
    return json.loads(response.body)["error"]["code"]


IN_THE_REQUEST = [
    {"message": "Unknown reasoning format: bogus", "type": "server_error"},
    {"message": "Failed to parse tools: Missing tool type: {}; tools = [\n  {}\n]", "type": "server_error"},
    {"message": "image input is not supported - hint: if this is unexpected, provide the mmproj"},
    {"message": "input (600 tokens) is too large to process. increase the physical batch size"},
    {"message": "Context size has been exceeded."},
    {"message": "request (9 tokens) exceeds it", "type": "exceed_context_size_error"},
    {"message": "[json.exception.type_error.302] type must be string, but is object"},
    {"message": "This model's maximum context length is 4096 tokens"},
]


@pytest.mark.parametrize("error", IN_THE_REQUEST, ids=lambda each: each["message"][:24])
async def test_an_error_in_the_request_is_400_with_the_words_of_the_engine(error):
    """No engine of the same model gets the request as well, and no circuit opens."""
    config = rl.config_of(rl.local("a", model_digest="d"), rl.local("b", model_digest="d"))
    async with rl.open_lab(config, a=rl.error(500, **error), b=rl.answer()) as lab:
        for _ in range(4):
            response = await lab.ask()
            assert (response.status, json.loads(response.body)["error"]["message"]) == (400, error["message"])
        assert (len(lab.players["a"].asked), len(lab.players["b"].asked)) == (4, 0)
        assert lab.router.states() == {"a": "", "b": ""}


@pytest.mark.parametrize(
    "script",
    [rl.error(500), rl.stream(b"data: null\n\n"), rl.saying(), rl.answer(body=b"[]")],
    ids=["status 500", "an event without an object", "no answer", "no object"],
)
async def test_failures_of_one_tenant_open_no_circuit_for_others(autojump_clock, script):
    """A tenant's own failures open the circuit for that tenant only."""
    async with rl.open_lab(rl.MAC, mac=(*[script] * 3, rl.answer())) as lab:
        for at in range(3):
            assert (await lab.ask(rl.STREAMED | {"user": str(at)})).status >= 500
        assert (await lab.ask()).status == 503
        assert (await lab.ask(headers=OTHER)).status == 200


async def test_failures_of_two_tenants_open_the_circuit_for_all():
    async with rl.open_lab(rl.MAC, mac=rl.error(500)) as lab:
        for headers in ({}, OTHER, {}):
            assert (await lab.ask(headers=headers)).status == 502
        assert (await lab.ask(headers={"x-tenant": "third"})).status == 503
        assert lab.router.states()["mac"]


async def test_refused_connections_open_the_circuit_for_all():
    async with rl.open_lab(rl.MAC, {"mac": None}) as lab:
        for _ in range(3):
            assert (await lab.ask()).status == 502
        assert (await lab.ask(headers=OTHER)).status == 503


def test_a_failure_of_one_tenant_keeps_a_half_open_circuit_half_open():
    """It proves that the backend answers, and is no evidence against it."""
    circuits = Circuits(pauses_of(15), random.Random(1))
    for _ in range(3):
        circuits.failed("a", "one", 0, is_own=False)
    assert circuits.admit("a", "one", 20)
    circuits.failed("a", "one", 20, is_own=True)
    assert circuits.of("a").state(20) is State.HALF_OPEN
    assert circuits.admit("a", "two", 20)
    circuits.apply("a", "two", Circuit.succeeded)
    assert circuits.of("a") == Circuit()


def test_circuits_of_tenants_are_bounded(monkeypatch):
    monkeypatch.setattr("llmkube.router.dispatch.circuits.MAX_OF_TENANTS", 3)
    circuits = Circuits(pauses_of(15), random.Random(1))
    for at in range(9):
        circuits.failed("a", str(at), 0, is_own=True)
    assert [bool(circuits.of("a", str(at)).failures) for at in range(9)] == [False] * 6 + [True] * 3


# -- requests that end engines ----------------------------------------------------------------------------------------


async def test_a_request_that_ends_engines_ends_two_at_most(autojump_clock):
    """It is refused to its tenant for ten minutes; other requests, and those of other tenants, are not."""
    async with rl.open_lab(TWO, a=rl.saying(), b=(rl.saying(), rl.answer()), c=rl.answer()) as lab:
        response = await lab.ask()
        assert (response.status, code_of(response)) == (400, "ended_engines")
        assert [len(lab.players[name].asked) for name in "abc"] == [1, 1, 0]
        again = await lab.ask()
        assert (again.status, code_of(again)) == (400, "ended_engines")
        assert [len(lab.players[name].asked) for name in "abc"] == [1, 1, 0]
        assert (await lab.ask(rl.ASKED | {"user": "x"})).status == 200
        await trio.sleep(suspects.REFUSED_SECONDS)
        assert (await lab.ask()).status == 200


async def test_a_retry_by_the_client_is_the_same_request(autojump_clock):
    """With one engine, which restarts, the second exit is the last one."""
    async with rl.open_lab(rl.MAC, mac=rl.saying()) as lab:
        assert (await lab.ask()).status == 502
        assert (await lab.ask()).status == 400
        assert (await lab.ask()).status == 400
        assert len(lab.players["mac"].asked) == 2


@pytest.mark.parametrize(("second", "blamed"), [(("one", "two"), False), (("one",), True), (("one", "three"), True)])
async def test_a_request_is_blamed_only_if_no_other_was_in_both_engines(second, blamed):
    found = suspects.Suspects()
    requests = {name: suspects.Suspect("tenant", "/v1/x", name.encode()) for name in ("one", "two", "three")}
    for engine, names in (("a", ("one", "two")), ("b", second)):
        for name in names:
            found._enter(engine, requests[name])
        results = {name: found.died(engine, requests[name]) for name in names}
        for name in names:
            found.leave(engine, requests[name])
    assert (results["one"], found.is_refused(requests["one"])) == (blamed, blamed)
    assert not found.is_refused(suspects.Suspect("other", "/v1/x", b"one"))


async def test_a_tenant_that_has_ended_engines_is_the_likely_cause():
    """The other tenant's request was in both engines, but with different requests of that tenant."""
    found = suspects.Suspects()

    def die(engine, *requests):
        for each in requests:
            found._enter(engine, each)
        results = [found.died(engine, each) for each in requests]
        for each in requests:
            found.leave(engine, each)
        return results

    quiet = suspects.Suspect("quiet", "/v1/x", b"hi")
    first, second, third = (suspects.Suspect("hostile", "/v1/x", b"%d" % at) for at in range(3))
    assert [die("a", first), die("b", first)] == [[False], [True]]
    assert [die("a", quiet, second), die("b", quiet, third)] == [[False, False]] * 2
    assert not found.is_refused(quiet)
    assert die("b", second) == [True]


async def test_suspects_are_retried_one_at_a_time(autojump_clock):
    """An innocent request that was in the engine with the culprit is answered."""
    died = trio.Event()
    active = most = 0

    async def die_together(connection):
        await died.wait()

    async def answer_alone(connection):
        nonlocal active, most
        active += 1
        most = max(most, active)
        await trio.sleep(1)
        active -= 1
        await connection.send_all(rl.answer())

    results = []
    async with rl.open_lab(TWO, a=die_together, b=answer_alone, c=rl.answer()) as lab, trio.open_nursery() as nursery:

        async def ask(user):
            results.append(await lab.ask(rl.ASKED | {"user": user}))

        for user in "xyz":
            nursery.start_soon(ask, user)
        await trio.testing.wait_all_tasks_blocked()
        died.set()
    assert ([each.status for each in results], most) == ([200] * 3, 1)


async def test_a_long_suspect_delays_the_next_one_for_half_a_minute(autojump_clock):
    """Otherwise a tenant could make the requests of others that were in an engine with its own time out."""
    died, results = trio.Event(), []

    async def die_together(connection):
        await died.wait()

    players = {"a": die_together, "b": (rl.saying(b"", then=rl.until_gone), rl.answer())}
    async with rl.open_lab(TWO, **players, c=rl.answer()) as lab, trio.open_nursery() as nursery:

        async def ask(tenant):
            results.append(((await lab.ask(headers={"x-tenant": tenant})).status, trio.current_time()))
            nursery.cancel_scope.cancel()

        for tenant in ("one", "other"):
            nursery.start_soon(ask, tenant)
        await trio.testing.wait_all_tasks_blocked()
        died.set()
    assert results == [(200, suspects.MAX_ALONE_SECONDS)]


async def test_a_suspect_waits_for_one_of_another_tenant_not_for_all(autojump_clock):
    """Tenants take turns; a request whose client leaves while it waits delays nobody."""
    found, began, scope = suspects.Suspects(), [], trio.CancelScope()
    hostile = [suspects.Suspect("hostile", "/v1/x", b"%d" % at) for at in range(4)]
    quiet = suspects.Suspect("quiet", "/v1/x", b"hi")
    for each in (*hostile, quiet):
        found._enter("a", each)
        found.died("a", each)

    async def attempt(request, seconds, within=None):
        async def send():
            began.append((request.tenant, trio.current_time()))
            await trio.sleep(seconds)

        with within or trio.CancelScope():
            await found.attempt("b", request, 600, send)

    async with trio.open_nursery() as nursery:
        for each in hostile:
            nursery.start_soon(attempt, each, 40, scope if each is hostile[1] else None)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(attempt, quiet, 1)
        await trio.sleep(10)
        scope.cancel()
    assert began == [("hostile", 0), ("quiet", 30), ("hostile", 36), ("hostile", 66)]


async def test_an_answered_request_is_no_suspect(autojump_clock):
    """An engine that is stopped twice, by hand for instance, makes no request suspect that was answered meanwhile."""
    closing = rl.answer(lines=[b"Connection: close"])
    async with rl.open_lab(rl.MAC, mac=(rl.saying(), closing, rl.saying(), closing)) as lab:
        assert [(await lab.ask()).status for _ in range(4)] == [502, 200, 502, 200]


def test_suspects_are_bounded(monkeypatch):
    monkeypatch.setattr(suspects, "MAX_ENTRIES", 2)
    entries = suspects.OrderedDict()
    for at in range(5):
        suspects._remember(entries, ("t", b"%d" % at), 0.0)
    assert [key[1] for key in entries] == [b"3", b"4"]


async def test_bodies_are_not_kept():
    """Of requests that were in an engine when it died only the digests are needed."""
    found = suspects.Suspects()
    requests = [suspects.Suspect("tenant", "/v1/x", bytes([at]) * 1000) for at in range(3)]
    for each in requests:
        found._enter("a", each)
    found.died("a", requests[0])
    assert [each.body for each in requests] == [b""] * 3
    assert len({each.key for each in requests}) == 3

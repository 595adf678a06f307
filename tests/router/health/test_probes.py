"""A healthCheck follows its spec, and opens and closes the circuit of a backend; a reload ends it."""

import attrs
import trio
import trio.testing

from llmkube.router.config.routing_config import Auth, Probe
from router.proxy.router_lab import Player, answer, cloud, config_of, error, local, open_lab, until_gone

PROBE = Probe(path="/ok", interval_seconds=10, timeout_seconds=2)
PROBED = config_of(local("a", probe=PROBE), local("b"))
WELL = answer(200, {"status": "ok"})


def players(health, **more):
    return {"a": Player((answer(),), health), "b": Player((answer(),))} | more


async def test_it_asks_at_the_path_and_in_the_rhythm_of_the_spec(autojump_clock):
    """Paths start at the root of the host, and probes at startup; backends without a healthCheck are not probed."""
    async with open_lab(PROBED, players(WELL)) as lab:
        began = trio.current_time()
        await trio.sleep(35)
        assert [(round(at - began), path) for at, path in lab.players["a"].probed] == [
            (0, "/ok"), (10, "/ok"), (20, "/ok"), (30, "/ok"),
        ]  # fmt: skip
        assert lab.players["b"].probed == []
        assert lab.metric("llmkube_router_probes_total", backend="a", result="healthy") == 4
        assert lab.router.states() == {"a": "", "b": ""}


async def test_three_failures_close_a_backend_and_one_success_lets_one_request_through(autojump_clock):
    """No request reaches it meanwhile; status, gauge and `/readyz` have the reason."""
    async with open_lab(PROBED, players(error(500))) as lab:
        await trio.sleep(15)
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "a"
        await trio.sleep(10)
        for _ in range(5):
            assert (await lab.ask()).headers.get("x-llmkube-backend") == "b"
        assert lab.router.states()["a"] == "health check failed: status 500 at /ok"
        assert lab.metric("llmkube_router_backend_health", backend="a") == 0
        assert lab.router.ready() == (True, "a: health check failed: status 500 at /ok")
        assert len(lab.players["a"].asked) == 1
        lab.players["a"].health = WELL
        await trio.sleep(10)
        assert lab.router.states()["a"] == ""
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "a"


async def test_after_a_success_one_request_tries_it_out(autojump_clock):
    """Other requests use the next backend until its result is known."""
    there = players(error(500), a=Player((until_gone,), error(500)))
    async with open_lab(PROBED, there) as lab, trio.open_nursery() as nursery:
        await trio.sleep(25)
        lab.players["a"].health = WELL
        await trio.sleep(10)
        nursery.start_soon(lab.ask)
        await trio.sleep(0.1)
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "b"
        assert len(lab.players["a"].asked) == 1
        nursery.cancel_scope.cancel()


async def test_no_answer_in_time_is_a_failure(autojump_clock):
    """Each probe has its own timeout; the interval does not change."""
    async with open_lab(PROBED, players(None)) as lab:
        began = trio.current_time()
        await trio.sleep(25)
        assert lab.router.states()["a"] == "health check failed: no response at /ok within 2 seconds"
        assert [round(at - began) for at, _ in lab.players["a"].probed] == [0, 10, 20]
        assert lab.metric("llmkube_router_probes_total", backend="a", result="unhealthy") == 3


async def test_no_connection_is_a_failure(autojump_clock):
    """The reason has no address."""
    async with open_lab(PROBED, {"a": None, "b": Player((answer(),))}) as lab:
        await trio.sleep(25)
        assert lab.router.states()["a"] == "health check failed: no response at /ok"


async def test_an_engine_that_loads_is_waited_for(autojump_clock):
    """Its 503 is not a failure: requests wait until the model is loaded."""
    loads = error(503, "Loading model")
    async with open_lab(config_of(local("a", probe=PROBE)), {"a": Player((loads, loads, answer()), loads)}) as lab:
        await trio.sleep(100)
        assert lab.router.states() == {"a": ""}
        assert lab.metric("llmkube_router_probes_total", backend="a", result="loading") == 10
        assert (await lab.ask()).status == 200


async def test_a_reload_ends_the_probes_of_before(autojump_clock):
    """An unchanged backend keeps its state; a changed one starts again; one without a healthCheck is not probed."""
    async with open_lab(PROBED, players(error(500))) as lab:
        await trio.sleep(25)
        await reload(lab, attrs.evolve(PROBED, first_byte_seconds=9.0))
        assert lab.router.states()["a"].startswith("health check failed")
        await reload(lab, config_of(local("a", probe=attrs.evolve(PROBE, path="/other")), local("b")))
        assert lab.router.states()["a"] == ""
        assert lab.players["a"].probed[-1][1] == "/other"
        await reload(lab, config_of(local("a"), local("b")))
        count = len(lab.players["a"].probed)
        await trio.sleep(100)
        assert len(lab.players["a"].probed) == count
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "a"


async def reload(lab, config):
    lab.config, lab.stamp = config, (lab.stamp[0] + 1, 0, 0)
    await lab.router.live.reload_if_changed()
    await trio.testing.wait_all_tasks_blocked()


async def test_lists_of_teams_close_no_probe(tmp_path, autojump_clock):
    """A probe belongs to no client; it carries the backend's own key, and no other backend's."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "red").write_text("k")
    (tmp_path / "a").write_text("sk-of-a")
    auth = Auth(keys_folder=str(tmp_path / "keys"), models_of_team={"red": ("x",)})
    config = config_of(cloud("a", probe=PROBE, key_file=str(tmp_path / "a")), cloud("b", probe=PROBE), auth=auth)
    heads = []

    async def listens(connection):
        heads.append(await connection.receive_some())
        await connection.send_all(WELL)

    async with open_lab(config, {"a": Scripted(listens), "b": Scripted(listens)}) as lab:
        await trio.sleep(5)
        assert lab.router.states() == {"a": "", "b": ""}
    keyed = [b"sk-of-a" in head for head in heads]
    assert sorted(keyed) == [False, True]
    assert all(b"llmkube-classification" not in head.lower() for head in heads)


class Scripted(Player):
    """A player that lets a function read the data."""

    def __init__(self, script):
        super().__init__((script,))
        self.script = script

    async def _serve(self, connection):
        async with connection:
            await self.script(connection)

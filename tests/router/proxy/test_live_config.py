"""A config that changes while a router runs."""

import json

import attrs
import pytest
import trio

from llmkube.base.errors import UserError
from llmkube.router.config.routing_config import Auth
from llmkube.router.proxy.live_config import keys_for
from router.proxy.router_lab import DONE, answer, chunk, cloud, config_of, error, local, open_lab, piece, stream


async def test_another_config_applies_to_the_next_request_and_drops_none():
    """A stream that started under the old one continues to its end."""
    goes_on = trio.Event()

    async def slow(connection):
        await connection.send_all(stream(piece("one"), end=b""))
        await goes_on.wait()
        await connection.send_all(chunk(piece("", "stop") + DONE) + b"0\r\n\r\n")

    async with open_lab(config_of(local("mac")), mac=slow, other=answer()) as lab:
        got = []

        async def read():
            got.append(await lab.read())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            lab.config, lab.stamp = config_of(cloud("other")), (2, 0, 0)
            await lab.router.live.reload_if_changed()
            assert (await lab.ask()).headers.get("x-llmkube-backend") == "other"
            goes_on.set()
        ((status, body, clean),) = got
        assert (status, clean) == (200, True)
        assert body.endswith(DONE)
    assert [json.loads(line)["kind"] for line in lab.lines][:2] == ["start", "config"]


async def test_an_invalid_config_changes_nothing_and_is_reported():
    """It is reported in /readyz and in the metric, until the file is valid again."""
    async with open_lab(config_of(local("mac")), mac=answer()) as lab:

        def broken():
            raise UserError("no comma in line 7", field="rules")

        live = lab.router.live
        live.source, good = attrs.evolve(live.source, load=broken), live.source
        lab.stamp = (2, 0, 0)
        await live.reload_if_changed()
        assert (await lab.ask()).status == 200
        ready = await lab.ask(path="/readyz", method="GET")
        assert (ready.status, "no comma in line 7" in json.loads(ready.body)["reason"]) == (200, True)
        assert lab.metric("llmkube_router_config_valid") == 0
        live.source, lab.stamp = good, (3, 0, 0)
        await live.reload_if_changed()
        assert lab.metric("llmkube_router_config_valid") == 1


async def test_a_changed_backend_has_a_new_circuit():
    """Its circuit belonged to another address; an unchanged backend keeps its circuit."""
    async with open_lab(config_of(cloud("a"), cloud("b")), a=error(500), b=error(500), c=answer()) as lab:
        for _ in range(3):
            await lab.ask()
        assert (await lab.ask()).status == 503
        lab.config, lab.stamp = config_of(cloud("a"), cloud("b", base_url="http://c/v1")), (2, 0, 0)
        await lab.router.live.reload_if_changed()
        assert (await lab.ask()).headers.get("x-llmkube-backend") == "b"
        assert lab.audit[-1]["attempts"][0]["result"] == "circuit_open"


def test_unreadable_keys_are_reported(tmp_path):
    """They are not treated as an empty list, which would admit every client."""
    with pytest.raises(UserError, match="file per team"):
        keys_for(config_of(local("a"), auth=Auth(keys_folder=str(tmp_path / "none"))), lambda: 0.0)

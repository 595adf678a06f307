"""The server's process is killed under load, again and again, and its database is damaged: what was acknowledged stays.

`lengths.py` says how often it is killed.
"""

import json
import random
import ssl
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import httpx
import pytest
import trio
import yaml
from structlog.testing import capture_logs

from contracts.playing import LEFT_HALF_WAY
from lengths import KILLS
from llmkube.apiserver.server import open_api_server

pytestmark = LEFT_HALF_WAY

WRITERS = 4
MAPS = "/api/v1/namespaces/default/configmaps"

SERVER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import trio
    from llmkube.apiserver.server import open_api_server

    async def main():
        async with open_api_server(Path(sys.argv[1]), port=0) as handle:
            print(handle.url, flush=True)
            await trio.sleep_forever()

    trio.run(main)
    """
)


@attrs.define(eq=False)
class Ledger:
    """The allowed states of each object: the last acknowledged one, and the one in flight when the server died."""

    acknowledged: dict[str, str | None] = attrs.Factory(dict)  # by name; None: it is deleted
    under_way: dict[str, str | None] = attrs.Factory(dict)
    versions: dict[str, int] = attrs.Factory(dict)  # the last resourceVersion that each object was acknowledged with
    floor: int = 0  # the list's resourceVersion when this server was first asked
    writes: int = 0

    def saw(self, name: str, value: str | None, version: int | None = None) -> None:
        """Remember an acknowledged write; a delete tells no version."""
        if version is not None:
            assert version > max(self.floor, self.versions.get(name, 0)), "a resourceVersion went backwards"
            self.versions[name] = version
        self.acknowledged[name] = value
        self.under_way.pop(name, None)
        self.writes += 1

    def check(self, found: dict[str, str]) -> None:
        """Compare with the state of a new server, and continue from there."""
        for name in {*self.acknowledged, *self.under_way, *found}:
            allowed = [self.acknowledged.get(name)] + ([self.under_way[name]] if name in self.under_way else [])
            assert found.get(name) in allowed, f"{name} is {found.get(name)}, not one of {allowed}"
        self.acknowledged = dict(found)
        self.under_way.clear()


@pytest.mark.e2e
async def test_acknowledged_writes_survive_a_killed_server(tmp_path):
    """After each SIGKILL every acknowledged create, patch and delete is there, and resourceVersions continue."""
    rng = random.Random(0)
    ledger = Ledger()
    for _ in range(KILLS):
        with running_server(tmp_path) as (server, url):
            async with open_client(tmp_path, url) as http:
                await take_stock(http, ledger)
                async with trio.open_nursery() as nursery:
                    for writer in range(WRITERS):
                        nursery.start_soon(write, http, f"w{writer}", ledger, random.Random(rng.random()))
                    await trio.sleep(rng.uniform(0.05, 0.5))
                    server.kill()
    with running_server(tmp_path) as (_, url):
        async with open_client(tmp_path, url) as http:
            await take_stock(http, ledger)
    assert ledger.writes > KILLS, "nothing was written, nothing was shown"
    sys.stderr.write(f"{KILLS} kills, {ledger.writes} acknowledged writes, none lost\n")


async def take_stock(http: httpx.AsyncClient, ledger: Ledger) -> None:
    listed = (await http.get(MAPS)).json()
    ledger.floor = int(listed["metadata"]["resourceVersion"])
    assert ledger.floor >= max(ledger.versions.values(), default=0), "a resourceVersion went backwards"
    ledger.check({item["metadata"]["name"]: item["data"]["value"] for item in listed["items"]})


async def write(http: httpx.AsyncClient, prefix: str, ledger: Ledger, rng: random.Random) -> None:
    """Create, change and delete until the server is gone; each writer has names of its own."""
    while True:
        name, value = f"{prefix}-{rng.randrange(4)}", f"{rng.random()}"
        there = ledger.acknowledged.get(name) is not None
        try:
            if there and rng.random() < 0.3:
                ledger.under_way[name] = None
                answer = await http.delete(f"{MAPS}/{name}")
                assert answer.status_code == 200, answer.text
                ledger.saw(name, None)
                continue
            ledger.under_way[name] = value
            if there:
                merge = {"content-type": "application/merge-patch+json"}
                body = json.dumps({"data": {"value": value}})
                answer = await http.patch(f"{MAPS}/{name}", content=body, headers=merge)
            else:
                answer = await http.post(MAPS, json={"metadata": {"name": name}, "data": {"value": value}})
            assert answer.status_code in {200, 201}, answer.text
            ledger.saw(name, value, int(answer.json()["metadata"]["resourceVersion"]))
        except httpx.TransportError:
            return


@contextmanager
def running_server(state_dir: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server as a process of its own; it is killed at the end if it is not yet."""
    with subprocess.Popen([sys.executable, "-c", SERVER, str(state_dir)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url, "the server did not start"
            yield server, url
        finally:
            server.kill()
            server.wait()


@asynccontextmanager
async def open_client(state_dir: Path, url: str) -> AsyncGenerator[httpx.AsyncClient, None]:
    user: dict[str, Any] = yaml.safe_load((state_dir / "kubeconfig").read_text())["users"][0]["user"]
    context = ssl.create_default_context(cafile=str(state_dir / "ca" / "ca.crt"))
    headers = {"authorization": f"Bearer {user['token']}"}
    async with httpx.AsyncClient(base_url=url, verify=context, headers=headers, timeout=60) as http:
        yield http


@pytest.mark.parametrize("rubbish", [b"no database at all, " * 300, b""])
async def test_a_damaged_database_is_moved_aside(tmp_path, rubbish):
    """A server starts empty on a damaged file, renames that file and reports it; an empty file is not damaged."""
    (tmp_path / "api.db").write_bytes(rubbish)
    with capture_logs() as logs:
        async with open_api_server(tmp_path, port=0) as handle:
            assert handle.server.store.list("namespaces")
    kept = list(tmp_path.glob("api.db.damaged-*"))
    assert [path.read_bytes() for path in kept] == ([rubbish] if rubbish else [])
    assert [(entry["log_level"], entry["moved_to"]) for entry in logs] == [("error", str(path)) for path in kept]

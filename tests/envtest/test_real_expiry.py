"""A reflector whose place in history a real cluster has forgotten lists again, and misses nothing."""

import random
from pathlib import Path

import httpx  # noqa: ASYNC127 (the project's settled choice)
import pytest
import trio

from envtest.plane import ControlPlane, open_control_plane
from llmkube.base.backoff import Backoff
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.auth.transport import AuthTransport
from llmkube.k8s.builtins import ConfigMap
from llmkube.k8s.client import Client
from llmkube.k8s.codec import decode
from llmkube.k8s.errors import GoneError
from llmkube.k8s.reflector import Cache, run_reflector
from llmkube.k8s.resource import Key
from waiting import until

pytestmark = pytest.mark.envtest

QUICK = Backoff(base_seconds=0.05, cap_seconds=0.05, factor=1.0, jitter=0.0)


class Gate(httpx.AsyncBaseTransport):
    """Lets requests wait while it is shut, and remembers which lists and watches have passed."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self._opened = trio.Event()
        self._opened.set()
        self.passed: list[str] = []

    def shut(self) -> None:
        self._opened = trio.Event()

    def open(self) -> None:
        self._opened.set()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._opened.wait()
        self.passed.append("watch" if request.url.params.get("watch") else "list")
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _note(name: str, text: str) -> ConfigMap:
    return decode(ConfigMap, {"metadata": {"name": name, "namespace": "default"}, "data": {"text": text}})


async def _compact(plane: ControlPlane, revision: str) -> None:
    """Let etcd forget everything before a revision, at once."""
    flag = "--advertise-client-urls="
    url = next(each.removeprefix(flag) for each in plane.etcd.argv if each.startswith(flag))
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = await http.post(f"{url}/v3/kv/compaction", json={"revision": revision, "physical": True})
        assert answer.status_code == httpx.codes.OK, answer.text


async def test_a_reflector_survives_the_compaction_of_its_position(assets: Path, tmp_path: Path):
    """After a disconnect it resumes once, gets 410, lists once, and then has what was created, changed and deleted."""
    async with open_control_plane(assets, tmp_path / "plane", api_server_flags=["--watch-cache=false"]) as plane:
        config = load_config(plane.kubeconfig)
        gate = Gate(AuthTransport(config))
        async with (
            httpx.AsyncClient(transport=gate, base_url=config.server, timeout=None) as gated,
            httpx.AsyncClient(transport=AuthTransport(config), base_url=config.server, timeout=30) as http,
        ):
            client, cache, notified = Client(http), Cache[ConfigMap](), set[Key]()
            for name in ("changed", "deleted", "left"):
                await client.create(_note(name, "before"))
            async with trio.open_nursery() as nursery:

                async def reflect() -> None:
                    rng = random.Random(0)
                    await run_reflector(
                        Client(gated), ConfigMap, cache, notified.add, namespace="default", rng=rng, backoff=QUICK
                    )

                nursery.start_soon(reflect)
                await until(lambda: gate.passed == ["list", "watch"])
                await client.create(_note("seen", "before"))
                await until(lambda: Key("default", "seen") in cache)
                position = cache.position

                gate.shut()
                await plane.api_server.kill()
                await plane.start_api_server()
                await client.patch(ConfigMap, Key("default", "changed"), {"data": {"text": "after"}})
                await client.delete(ConfigMap, Key("default", "deleted"))
                await client.create(_note("made", "after"))
                newest = (await client.list(ConfigMap, namespace="default")).resource_version
                await _compact(plane, newest)
                with pytest.raises(GoneError):
                    async with client.open_watch(ConfigMap, namespace="default", resource_version=position) as watch:
                        await watch.next_event()

                notified.clear()
                del gate.passed[:]
                gate.open()
                await until(lambda: Key("default", "made") in cache)
                await until(lambda: gate.passed == ["watch", "list", "watch"])
                assert {key.name for key in notified} == {"changed", "deleted", "made"}
                assert Key("default", "deleted") not in cache
                changed = cache.get(Key("default", "changed"))
                assert changed is not None
                assert changed.data == {"text": "after"}
                await client.create(_note("later", "after"))
                await until(lambda: Key("default", "later") in cache)
                nursery.cancel_scope.cancel()

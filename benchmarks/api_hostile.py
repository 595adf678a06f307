"""Delay of other tasks of the event loop while the embedded API server handles hostile and large requests.

The server runs in this process, as in `llmkube up`, where the agent and the gateway share its event loop. A task that
sleeps a millisecond at a time notes by how much each turn came late.
"""

import gc
import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import structlog
import trio

from harness import Run, Table, begin, percentile
from llmkube.apiserver.memory_transport import open_transport
from llmkube.apiserver.server import open_api_server
from llmkube.k8s.crd.definitions import all_crds

TICK_SECONDS: Final = 0.001
MAPS: Final = "/api/v1/namespaces/default/configmaps"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP: Final = "bench.llmkube.dev"
THINGS: Final = f"/apis/{GROUP}/v1/namespaces/default/things"
JSON: Final = {"content-type": "application/json"}
JSON_PATCH: Final = {"content-type": "application/json-patch+json"}

Request = tuple[str, str, Mapping[str, str], bytes]


def definition() -> dict[str, Any]:
    """A kind with a pattern that is exponential to an engine that goes back, and a rule that is cubic."""
    spec: dict[str, Any] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "text": {"type": "string", "pattern": "^(a+)+$"},
            "list": {
                "type": "array",
                "items": {"type": "integer"},
                "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, self.all(c, a + b + c >= 0)))"}],
            },
        },
    }
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def thing(name: str, **spec: Any) -> bytes:
    """Return an object of that kind."""
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec}
    return json.dumps(body).encode()


def config_map(name: str, data: Mapping[str, str]) -> bytes:
    """Return a ConfigMap."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    return json.dumps(body).encode()


def requests() -> dict[str, Request]:
    """Return the requests, by their description."""
    doubling = [{"op": "add", "path": "/data/a", "value": ["x"]}]
    doubling += [{"op": "copy", "from": "/data", "path": f"/data/b{number}"} for number in range(27)]
    twice = b'{"metadata":{"name":"twice"},"data":{%b}}'
    names = b",".join(b'"k%d":"v"' % (number % 60_000) for number in range(120_000))
    fewer = b",".join(b'"k%d":"v"' % (number % 40_000) for number in range(80_000))
    crd = max(all_crds(), key=lambda each: len(json.dumps(each)))
    crd["metadata"]["labels"] = {"bench": "yes"}
    return {
        "60 MB of `[[],[],…]`": ("POST", MAPS, JSON, b"[" + b"[]," * 20_000_000 + b"[]]"),
        "3 MB of `[[],[],…]`": ("POST", MAPS, JSON, b"[" + b"[]," * 1_000_000 + b"[]]"),
        "99,000 empty lists in a custom object": ("POST", THINGS, JSON, thing("lists", free=[[]] * 99_000)),
        "a JSON patch that doubles 27 times": ("PATCH", f"{MAPS}/small", JSON_PATCH, json.dumps(doubling).encode()),
        "120,000 duplicate keys": ("POST", MAPS, JSON, twice % names),
        "80,000 duplicate keys": ("POST", MAPS, JSON, twice % fewer),
        "a text of 1 MB for the pattern `^(a+)+$`": ("POST", THINGS, JSON, thing("text", text="a" * 1_000_000 + "!")),
        "a rule of three loops over 300 numbers": ("POST", THINGS, JSON, thing("rule", list=list(range(300)))),
        "480 levels of lists": ("POST", THINGS, JSON, thing("deep").replace(b"{}", b"[" * 480 + b"]" * 480)),
        "a ConfigMap of 1 MB, 40,000 entries": (
            "POST",
            MAPS,
            JSON,
            config_map("large", {f"key-{number}": "value of it" for number in range(40_000)}),
        ),
        "a definition of a kind, again": (
            "PATCH",
            f"{CRDS}/{crd['metadata']['name']}?fieldManager=bench&force=true",
            {"content-type": "application/apply-patch+yaml"},
            json.dumps(crd).encode(),
        ),
        "a list of 2,000 ConfigMaps": ("GET", f"{MAPS}?labelSelector=filled", JSON, b""),
        "a Table of 2,000 ConfigMaps": (
            "GET",
            f"{MAPS}?labelSelector=filled",
            {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
            b"",
        ),
    }


async def record_delays(delays: list[float]) -> None:
    """Note by how much each turn comes late."""
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await trio.sleep(TICK_SECONDS)
        delays.append(max(0.0, time.perf_counter() - due))


async def measure(run: Run) -> dict[str, dict[str, Any]]:
    """Return for each request what was answered, how long it took, and the delays meanwhile, in seconds."""
    found: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix="llmkube-bench-") as name:
        async with open_api_server(Path(name), port=0) as running, open_transport(running.handler) as transport:
            await running.server.ensure([*all_crds(), definition()])
            async with httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http:  # noqa: S113
                await http.post(MAPS, headers=JSON, content=config_map("small", {"a": "b"}))
                for number in range(100 if run.quick else 2000):
                    body = json.loads(config_map(f"filled-{number}", {"key": "value " * 20}))
                    body["metadata"]["labels"] = {"filled": "yes"}
                    await http.post(MAPS, json=body)
                gc.freeze()  # as the programs do
                for what, (method, url, headers, content) in requests().items():
                    delays: list[float] = []
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(record_delays, delays)
                        await trio.sleep(0.1)
                        delays.clear()
                        started = time.perf_counter()
                        answer = await http.request(method, url, headers=headers, content=content)
                        seconds = time.perf_counter() - started
                        await trio.sleep(0.01)
                        nursery.cancel_scope.cancel()
                    found[what] = {"status": answer.status_code, "seconds": seconds, "delays": delays}
    return found


def main() -> None:
    """Measure, print, keep."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    run = begin("api_hostile", "orjson", "google-re2")
    found = trio.run(measure, run)
    rows = [
        [
            what,
            str(each["status"]),
            f"{each['seconds'] * 1e3:.0f}",
            f"{percentile(each['delays'], 50) * 1e3:.1f}",
            f"{max(each['delays']) * 1e3:.1f}",
        ]
        for what, each in found.items()
    ]
    run.finish(
        "Hostile and large requests to the embedded API server",
        """One request at a time, passed to the server in its own process, while a task on the same event loop is
        scheduled every millisecond. Its delay is the delay of the agent and the gateway under `llmkube up`.""",
        [Table(["request", "answer", "takes, ms", "delay p50, ms", "longest delay, ms"], rows)],
        {"requests": found},
        notes=["A body of 60 MB over a socket is refused by its length before it is read."],
    )


if __name__ == "__main__":
    main()

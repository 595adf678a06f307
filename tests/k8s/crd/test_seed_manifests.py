"""Manifests of the guides are served as printed: they decode and apply, and nothing in them is dropped or refused.

The generic runtime's snippet is printed without metadata and modelRef, and has been given both.
"""

import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs
import httpx
import pytest
import yaml

from llmkube.k8s.codec import decode, encode
from llmkube.k8s.crd.definitions import KINDS, all_crds
from llmkube.k8s.crd.first_api import convert
from memory_api_server import open_memory_api_server

DATA: Final = Path(__file__).parents[1] / "data"
EXAMPLES: Final = Path(__file__).parents[3] / "examples"
BY_KIND: Final[Mapping[str, Any]] = {kind.RESOURCE.kind: kind for kind in KINDS}


def documents(path: Path) -> Iterator[dict[str, Any]]:
    yield from filter(None, yaml.safe_load_all(path.read_text(encoding="utf-8")))


GUIDES: Final = list(documents(DATA / "guide-manifests.yaml"))
CONVERTED: Final = [
    body
    for old in documents(DATA / "blog-manifests.yaml")
    for found in [convert(old)]
    for body in (found.model, found.service)
]
SHOWN: Final = [
    body
    for path in sorted(EXAMPLES.rglob("*.yaml"))
    if path.parent.name != "runtime-plugin"  # valid only where the plug-in is installed: tests/runtimes does that
    for body in documents(path)
]


def name_of(body: Mapping[str, Any]) -> str:
    return f"{body['kind']}-{body['metadata']['name']}"


@asynccontextmanager
async def open_server() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        open_memory_api_server(utcnow=lambda: datetime.now(UTC), rng=random.Random(0)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=30) as http,
    ):
        await memory.server.ensure(all_crds())
        for namespace in {body["metadata"].get("namespace", "default") for body in [*GUIDES, *CONVERTED, *SHOWN]}:
            await http.post("/api/v1/namespaces", json={"metadata": {"name": namespace}})
        yield http


async def applied(http: httpx.AsyncClient, body: Mapping[str, Any], **params: str) -> httpx.Response:
    kind, metadata = BY_KIND[body["kind"]], body["metadata"]
    path = f"/apis/{body['apiVersion']}/namespaces/{metadata.get('namespace', 'default')}/{kind.RESOURCE.plural}"
    headers = {"content-type": "application/apply-patch+yaml"}
    params = {"fieldManager": "kubectl", "fieldValidation": "Strict", **params}
    return await http.patch(f"{path}/{metadata['name']}", json=body, params=params, headers=headers)


@pytest.mark.parametrize("body", [*GUIDES, *CONVERTED, *SHOWN], ids=name_of)
async def test_it_is_applied(body: dict[str, Any]) -> None:
    """A strict server-side apply takes it, a second one changes nothing, and what was written is what is stored."""
    async with open_server() as http:
        first = await applied(http, body)
        assert first.status_code == 201, first.text
        again = await applied(http, body)
        assert (again.status_code, again.json()) == (200, first.json())
        assert missing(body["spec"], first.json()["spec"]) == []


def missing(wanted: Any, stored: Any, path: str = "spec") -> list[str]:
    """The paths of what was written and is not stored as it was."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return [each for key in wanted for each in missing(wanted[key], stored.get(key), f"{path}.{key}")]
    if isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        pairs = enumerate(zip(wanted, stored, strict=True))
        return [each for index, (left, right) in pairs for each in missing(left, right, f"{path}[{index}]")]
    return [] if wanted == stored else [path]


def unknown_paths(obj: Any) -> list[str]:
    """Return the paths that a decoded object, or an object within it, did not know."""
    if isinstance(obj, tuple):
        return [path for item in obj for path in unknown_paths(item)]
    if not attrs.has(type(obj)):
        return []
    inner = [path for name in attrs.fields_dict(type(obj)) for path in unknown_paths(getattr(obj, name))]
    return [*obj.wire.unknown, *inner] if hasattr(obj, "wire") else inner


@pytest.mark.parametrize("body", [*GUIDES, *CONVERTED, *SHOWN], ids=name_of)
def test_it_is_understood(body: dict[str, Any]) -> None:
    """Every field of it is known to a class, and survives a round trip as printed."""
    obj = decode(BY_KIND[body["kind"]], body)
    assert unknown_paths(obj) == []
    assert encode(obj) == body


FILLED_IN = {
    "Model-phi-4-mini": {"refreshPolicy": "IfNotPresent"},
    "InferenceService-phi-4-mini": {
        "runtime": "llamacpp",
        "replicas": 1,
        "priority": "normal",
        "suspend": False,
        "evictionProtection": False,
        "parallelSlots": 1,
    },
    "ModelRouter-hybrid-router": {"dataPlane": "Proxy", "defaultRouteStrategy": "Static"},
}


@pytest.mark.parametrize("body", [body for body in GUIDES if name_of(body) in FILLED_IN], ids=name_of)
async def test_what_is_filled_in(body: dict[str, Any]) -> None:
    """The server adds the defaults of the reference at the top of spec, and nothing else."""
    async with open_server() as http:
        stored = (await applied(http, body)).json()["spec"]
    assert {key: value for key, value in stored.items() if key not in body["spec"]} == FILLED_IN[name_of(body)]


def test_all_of_them_are_here() -> None:
    """The guides print eight objects of today's API and two of the first one."""
    kinds = [body["kind"] for body in GUIDES]
    counted = {kind: kinds.count(kind) for kind in kinds if kind in BY_KIND}
    assert counted == {"Model": 2, "InferenceService": 5, "ModelRouter": 1}
    assert len(CONVERTED) == 4


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("ModelRouter-hybrid-router", ("defaultRoute",), "moon"),
        ("InferenceService-custom", ("probeOverrides", "startup", "tcpSocket"), {"prot": 8080}),
        ("InferenceService-chat-prod", ("priority",), "urgent"),
    ],
)
async def test_a_slip_of_the_pen_is_refused(name: str, path: tuple[str, ...], value: Any) -> None:
    """The same manifests with one wrong value are refused, so that applying them proves something."""
    body = next(body for body in GUIDES if name_of(body) == name)
    async with open_server() as http:
        answer = await applied(http, {**body, "spec": with_value(body["spec"], path, value)})
    assert answer.status_code in {400, 422, 500}, answer.text
    assert path[-1] in answer.text


def with_value(obj: Any, path: tuple[str, ...], value: Any) -> Any:
    step, *rest = path
    return {**obj, step: with_value(obj[step], tuple(rest), value) if rest else value}

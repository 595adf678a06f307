"""Programs in Go write protobuf to the embedded API server, and read back what they wrote."""

import base64
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from memory_api_server import open_memory_api_server

BODIES = json.loads(
    (Path(__file__).parents[1] / "apiserver" / "protocol" / "data" / "go_bodies.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: "{apiVersion} {kind}".format(**body["json"]))
async def test_what_controller_runtime_creates_is_stored(body):
    """The kinds that a Go agent writes are created from protobuf and returned as JSON with the same content."""
    sent = body["json"]
    group = "/api/v1" if sent["apiVersion"] == "v1" else f"/apis/{sent['apiVersion']}"
    plural = {"Endpoints": "endpoints"}.get(sent["kind"], f"{sent['kind'].lower()}s")
    media = "application/vnd.kubernetes.protobuf"
    async with (
        open_memory_api_server(utcnow=lambda: datetime.now(UTC), rng=random.Random(0)) as memory,
        httpx.AsyncClient(transport=memory.transport, base_url="http://apiserver", timeout=30) as http,
    ):
        await http.post("/api/v1/namespaces", json={"metadata": {"name": "ml"}})
        answer = await http.post(
            f"{group}/namespaces/ml/{plural}",
            content=base64.b64decode(body["protobuf"]),
            headers={"content-type": media, "accept": f"{media},application/json"},
        )
        assert answer.status_code == 201, answer.text
        stored = answer.json()
    for field in ("ports", "subsets", "addressType", "reason", "message"):
        assert stored.get(field) == sent.get(field)
    assert stored["metadata"]["labels"] == {"a": "b"}
    if sent["kind"] == "EndpointSlice":
        assert stored["endpoints"][0]["addresses"] == ["10.0.0.7"]
        assert stored["endpoints"][0]["conditions"] == {"ready": False, "serving": True}
    if sent["kind"] == "Lease":
        assert stored["spec"] == sent["spec"]

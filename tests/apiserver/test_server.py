"""The server on a state directory: TLS, token, restarts, a taken port."""

import json
import ssl
from contextlib import asynccontextmanager

import httpx
import pytest
import trio
import yaml
from prometheus_client import CollectorRegistry, Gauge
from structlog.testing import capture_logs

from llmkube.apiserver.server import open_api_server
from llmkube.base.http.listen import PortTakenError


@asynccontextmanager
async def open_http(handle, state_dir, *, token=None):
    user = yaml.safe_load(handle.kubeconfig.read_text())["users"][0]["user"]
    context = ssl.create_default_context(cafile=str(state_dir / "ca" / "ca.crt"))
    headers = {"authorization": f"Bearer {token if token is not None else user['token']}"}
    async with httpx.AsyncClient(base_url=handle.url, verify=context, headers=headers, timeout=60) as http:
        yield http


async def test_state_survives_a_restart(tmp_path):
    """Objects, uids and the revision are the same after a restart, and an earlier watch has to list again."""
    path = "/api/v1/namespaces/default/configmaps"
    async with open_api_server(tmp_path, port=0) as handle, open_http(handle, tmp_path) as http:
        made = (await http.post(path, json={"metadata": {"name": "a"}, "data": {"k": "v"}})).json()
    async with open_api_server(tmp_path, port=0) as handle, open_http(handle, tmp_path) as http:
        assert (await http.get(f"{path}/a")).json() == made
        later = (await http.post(path, json={"metadata": {"name": "b"}})).json()
        assert int(later["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
        answer = await http.get(path, params={"watch": "1", "resourceVersion": "1", "timeoutSeconds": "5"})
        event = json.loads(answer.text)
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_requests_for_changes_are_logged(tmp_path):
    """Changes by clients outside this process have client, object and result; no field of an object."""
    path = "/api/v1/namespaces/default/configmaps"
    async with open_api_server(tmp_path, port=0) as handle, open_http(handle, tmp_path) as http:
        with capture_logs() as logs:
            manager = {"fieldManager": "anna"}
            await http.post(path, params=manager, json={"metadata": {"name": "a"}, "data": {"k": "hush"}})
            await http.post(path, params=manager | {"dryRun": "All"}, json={"metadata": {"name": "b"}})
            await http.get(f"{path}/a")
            await http.delete(f"{path}/none", headers={"user-agent": "kubectl/v1.32 (linux)"})
            leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
            await http.post(leases, json={"metadata": {"name": "mac"}})
    assert [each for each in logs if each.pop("event") == "change requested" and each.pop("log_level") == "info"] == [
        {"by": "anna", "verb": "POST", "path": path, "name": "a", "status": 201},
        {"by": "anna", "verb": "POST", "path": path, "name": "b", "dry_run": True, "status": 201},
        {"by": "kubectl", "verb": "DELETE", "path": f"{path}/none", "status": 404},
    ]


async def test_only_the_token_opens_the_door(tmp_path):
    """Without the token everything but the health checks is 401 with a Status."""
    async with open_api_server(tmp_path, port=0) as handle, open_http(handle, tmp_path, token="wrong") as http:
        answer = await http.get("/api/v1/namespaces")
        assert answer.status_code == 401
        assert (answer.json()["kind"], answer.json()["reason"]) == ("Status", "Unauthorized")
        for path in ("/healthz", "/livez", "/readyz"):
            assert (await http.get(path)).text == "ok"


async def test_metrics_take_the_token(tmp_path):
    """A server that was given a registry shows it at /metrics, to those who have the token."""
    registry = CollectorRegistry()
    Gauge("llmkube_demo", "A figure.", registry=registry).set(7)
    async with open_api_server(tmp_path, port=0, registry=registry) as handle:
        async with open_http(handle, tmp_path, token="wrong") as http:
            assert (await http.get("/metrics")).status_code == 401
        async with open_http(handle, tmp_path) as http:
            assert "llmkube_demo 7.0" in (await http.get("/metrics")).text
            assert (await http.get("/api/v1/namespaces")).json()["kind"] == "NamespaceList"


async def test_plain_http_is_not_spoken(tmp_path):
    """A client without TLS gets no answer."""
    async with open_api_server(tmp_path, port=0) as handle, httpx.AsyncClient(timeout=60) as http:
        with pytest.raises(httpx.TransportError):
            await http.get(handle.url.replace("https", "http") + "/healthz")


async def test_a_taken_port_is_an_error_that_names_the_flag(tmp_path):
    """A second server on the port fails before it touches the state directory."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with open_api_server(tmp_path / "a", port=0) as handle:
        port = int(handle.url.rpartition(":")[2])
        with pytest.raises(PortTakenError, match="--api-port"):
            async with open_api_server(tmp_path / "b", port=port, port_field="--api-port"):
                pass
        assert not list((tmp_path / "b").iterdir())


async def test_the_handler_in_process_needs_no_token(tmp_path):
    """Callers in this process use the same server over memory."""
    from llmkube.apiserver.memory_transport import open_transport

    async with (
        open_api_server(tmp_path, port=0) as handle,
        open_transport(handle.handler) as transport,
        httpx.AsyncClient(transport=transport, base_url="http://apiserver") as http,
    ):
        assert (await http.get("/api/v1/namespaces/default")).status_code == 200


async def test_open_watches_do_not_hold_up_the_end(tmp_path):
    """A server with a watch in flight closes it cleanly and stops at once."""
    async with open_api_server(tmp_path, port=0) as handle, open_http(handle, tmp_path) as http:
        lines: list[str] = []
        watching = trio.Event()

        async def watch() -> None:
            async with http.stream("GET", "/api/v1/namespaces", params={"watch": "1"}, timeout=None) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
                    watching.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await watching.wait()
            handle.server.end_watches()
    assert lines

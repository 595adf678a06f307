"""A stand-in for metrics-server: the API `metrics.k8s.io` with the usage of each pod that a test sets."""

import datetime
import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from envtest.certs import Authority
from envtest.plane import write_private
from node.running_node import Node
from node.wiring import ADDRESS

GROUP = "metrics.k8s.io"
VERSION = f"{GROUP}/v1beta1"


@attrs.define(eq=False)
class Metrics:
    """The served usage.

    Attributes:
        cpu: Usage of every container, as a quantity.
    """

    node: Node
    cpu: str = "1m"

    async def serve(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        received = b""
        try:
            while piece := await stream.receive_some():
                received += piece
                if b"\r\n\r\n" not in received:
                    continue
                target, received = received.split(b" ", 2)[1].decode(), b""
                body = json.dumps(await self._answer(target)).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                await stream.send_all(head.encode() + body)
        except trio.BrokenResourceError:
            pass  # the API server has looked whether we listen

    async def _answer(self, target: str) -> Mapping[str, Any]:
        asked = re.search(r"/namespaces/([^/]+)/pods", target)
        if asked is None:
            verbs = {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodMetrics", "verbs": ["list"]}
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": [verbs]}
        pods = json.loads(await self.node.kubectl("get", "pods", "-n", asked[1], "-o", "json"))["items"]
        return {"kind": "PodMetricsList", "apiVersion": VERSION, "metadata": {}, "items": [*map(self._of, pods)]}

    def _of(self, pod: Mapping[str, Any]) -> Mapping[str, Any]:
        usage = {"cpu": self.cpu, "memory": "1Mi"}
        return {
            "metadata": {
                key: pod["metadata"][key] for key in ("name", "namespace", "labels") if key in pod["metadata"]
            },
            "timestamp": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "window": "1s",
            "containers": [{"name": each["name"], "usage": usage} for each in pod["spec"]["containers"]],
        }


@asynccontextmanager
async def metrics_server(node: Node, namespace: str, folder: Path) -> AsyncIterator[Metrics]:
    """Serve the API from the node's address, and have the API server know it while the block runs."""
    pair = Authority("metrics", datetime.datetime.now(datetime.UTC)).server("metrics", (ADDRESS,))
    write_private(folder / "metrics.pem", pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "metrics.pem")
    metrics = Metrics(node)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_ssl_over_tcp, metrics.serve, 0, context, host=ADDRESS)
        [listener] = await nursery.start(serve)
        port = listener.transport_listener.socket.getsockname()[1]
        meta = {"name": "metrics", "namespace": namespace}
        labels = {"kubernetes.io/service-name": "metrics"}
        await node.apply(
            namespace,
            {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": 443}]}},
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**meta, "labels": labels},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [ADDRESS]}],
                "ports": [{"port": port}],
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"v1beta1.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": "v1beta1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": meta,
                },
            },
        )
        try:
            await node.kubectl("wait", f"apiservice/v1beta1.{GROUP}", "--for=condition=Available", "--timeout=60s")
            yield metrics
        finally:
            with trio.CancelScope(deadline=trio.current_time() + 30, shield=True):
                await node.kubectl("delete", "apiservice", f"v1beta1.{GROUP}")
        nursery.cancel_scope.cancel()

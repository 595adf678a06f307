"""The embedded API server with the extras of `llmkube agent join`: roles, policies and tokens of accounts."""

import base64
import datetime
import json
import random
import time
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from llmkube.apiserver.storage.revisions import Store
from llmkube.base.errors import LLMKubeError
from llmkube.k8s.client import Client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.errors import TransportError
from memory_api_server import open_memory_api_server

ADMIN_TOKEN = "shown-by-the-administrator"
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RBAC, ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
KINDS = (
    (RBAC, "Role", "roles", "Namespaced"),
    (RBAC, "RoleBinding", "rolebindings", "Namespaced"),
    (RBAC, "ClusterRole", "clusterroles", "Cluster"),
    (RBAC, "ClusterRoleBinding", "clusterrolebindings", "Cluster"),
    (ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "Cluster"),
    (ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", "Cluster"),
)


def definition(group, kind, plural, scope):
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": OPEN}}],
        },
    }


def token_of(namespace, account, issued=0.0, life=604800.0, serial=0):
    claims = {"sub": f"system:serviceaccount:{namespace}:{account}", "iat": issued, "exp": issued + life, "jti": serial}
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.c2ln"


@attrs.define(eq=False)
class JoinCluster:
    """An API server that outlives event loops, issues tokens, and checks the token of each request.

    Attributes:
        tokens: Issued tokens with their requested seconds.
        refused: Tokens that are no longer valid.
        away: Whether connections are refused.
        silent: Whether requests hang.
        servers: URLs that clients connected to.
        nodes: The Nodes of the cluster; None if listing them is forbidden.
    """

    store: Store = attrs.field(factory=Store)
    tokens: dict[str, int] = attrs.field(factory=dict)
    refused: set[str] = attrs.field(factory=set)
    away: bool = False
    silent: bool = False
    servers: list[str] = attrs.field(factory=list)
    nodes: list[dict[str, Any]] | None = None

    @asynccontextmanager
    async def open_client(self, config=None):
        """Replace `k8s.client.open_client`."""
        if config is not None:
            self.servers.append(config.server)
        if self.away:
            raise TransportError("GET /: connection refused")
        failure = None
        shown = getattr(getattr(config, "identity", None), "token", ADMIN_TOKEN)
        async with open_memory_api_server(utcnow=lambda: NOW, rng=random.Random(7), store=self.store) as memory:
            await memory.server.ensure((*all_crds(), *(definition(*each) for each in KINDS)))
            transport = _Tokens(self, memory.transport, shown)
            async with httpx.AsyncClient(transport=transport, base_url="http://apiserver", timeout=None) as http:
                try:
                    yield Client(http)
                except (LLMKubeError, trio.TooSlowError) as error:
                    # raised outside the server's nursery, which a real client does not have
                    failure = error
        if failure is not None:
            raise failure


@attrs.define(eq=False)
class _Tokens(httpx.AsyncBaseTransport):
    cluster: JoinCluster
    inner: httpx.AsyncBaseTransport
    shown: str

    async def handle_async_request(self, request):
        if self.shown != ADMIN_TOKEN and (self.shown not in self.cluster.tokens or self.shown in self.cluster.refused):
            return httpx.Response(401, json={"kind": "Status", "code": 401, "reason": "Unauthorized"})
        if self.cluster.silent:
            await trio.sleep_forever()
        parts = request.url.path.strip("/").split("/")
        if parts == ["api", "v1", "nodes"]:
            if self.cluster.nodes is None:
                return httpx.Response(403, json={"kind": "Status", "code": 403, "reason": "Forbidden"})
            listed = {"metadata": {"resourceVersion": "1"}, "items": self.cluster.nodes}
            return httpx.Response(200, json={"apiVersion": "v1", "kind": "NodeList", **listed})
        if parts[4:5] != ["serviceaccounts"] or parts[6:] != ["token"]:
            return await self.inner.handle_async_request(request)
        seconds = json.loads(await request.aread())["spec"]["expirationSeconds"]
        token = token_of(parts[3], parts[5], issued=time.time(), life=seconds, serial=len(self.cluster.tokens))
        self.cluster.tokens[token] = seconds
        return httpx.Response(201, json={"kind": "TokenRequest", "status": {"token": token}})

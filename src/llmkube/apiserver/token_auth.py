"""One token opens the embedded server, and one kubeconfig carries it; both are for the owner of the state directory."""

import base64
import hmac
from pathlib import Path
from typing import Final

import yaml

from llmkube.apiserver.values.api_errors import unauthorized
from llmkube.base.http.connection import Judge
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.base.private_files import write_private

OPEN_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})
"""What needs no token: whether the server is there."""

CONTEXT_NAME: Final = "llmkube"
"""The context, the cluster and the user in the kubeconfig all have this name."""


def token_judge(token: str) -> Judge:
    """Let in only requests with the token; others get a 401 Status, before their bodies are read."""
    expected = token.encode("ascii")

    def judge(head: RequestHead, peer: str) -> Response | None:
        scheme, _, given = (head.headers.get("authorization") or "").partition(" ")
        known = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), expected)
        if known or head.path in OPEN_PATHS:
            return None
        return Response.json(401, unauthorized().to_status())

    return judge


def write_kubeconfig(path: Path, *, url: str, ca_certificate: Path, token: str) -> None:
    """Write a kubeconfig, mode 0600, that works on its own: certificate and token are inside it."""
    authority = base64.b64encode(ca_certificate.read_bytes()).decode("ascii")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT_NAME, "cluster": {"server": url, "certificate-authority-data": authority}}],
        "users": [{"name": CONTEXT_NAME, "user": {"token": token}}],
        "contexts": [
            {"name": CONTEXT_NAME, "context": {"cluster": CONTEXT_NAME, "user": CONTEXT_NAME, "namespace": "default"}}
        ],
        "current-context": CONTEXT_NAME,
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode("utf-8"))

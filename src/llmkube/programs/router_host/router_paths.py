"""Dispatch the gateway's requests to routers: by path, `/routers/NAMESPACE/NAME/v1/chat/completions`, or by model.

Clients with one base URL select a router by the model `routers/NAMESPACE/NAME`, which the gateway lists.
"""

import contextlib
from collections.abc import Callable
from typing import Final

import attrs

from llmkube.base.http.connection import StreamHandler
from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Response
from llmkube.k8s.resource import Key
from llmkube.router.auth.client_key import is_read_only
from llmkube.router.client_models import client_of, model_refused
from llmkube.router.config.routing_config import matches_any
from llmkube.router.dialects.dialect import DialectError
from llmkube.router.dialects.inbound import refusal_at
from llmkube.router.front_door import HEALTH_PATHS
from llmkube.router.model_field import read_model
from llmkube.router.origin_policy import is_preflight, preflight_answer
from llmkube.router.proxy.router import Router
from llmkube.router.refusals import refused

PREFIX: Final = "/routers/"
MODEL: Final = "routers/"
"""Prefix of the model ids of routers."""

SETTING: Final = "--gateway-serves"
ROUTERS: Final = "routers"
"""Value of the setting for a gateway that serves ModelRouters only."""


def router_url(gateway: str, router: Key) -> str:
    """Return the URL of a router below a gateway's URL."""
    return f"{gateway}{PREFIX}{router.namespace}/{router.name}"


def split_target(target: str) -> tuple[Key, str] | None:
    """Return the router that a target names and the rest of the target; None if it names none."""
    parts = target.removeprefix(PREFIX).split("/", 2) if target.startswith(PREFIX) else []
    if len(parts) < 2 or not parts[0] or not parts[1]:
        return None
    return Key(parts[0], parts[1]), f"/{parts[2]}" if len(parts) > 2 else "/"


async def target_of(exchange: StreamExchange) -> str:
    """Return the target of a request below `/routers/`, also if its `model` is a router; empty for all others."""
    head = exchange.head
    if head.target.startswith(PREFIX):
        return head.target
    if head.method == "POST" and b"routers" in exchange.body:  # a slash may be escaped
        with contextlib.suppress(DialectError):  # the gateway reports it
            model, _, _ = await read_model(exchange.body)
            if isinstance(model, str) and model.startswith(MODEL):
                return f"/{model.removesuffix(':latest')}{head.target}"
    return ""


def routers_handler(find: Callable[[Key], Router | None], gateway: StreamHandler) -> StreamHandler:
    """Return a handler that passes requests for a router to it, and all others to the gateway.

    Args:
        find: Returns a running router by name; None if there is none.
        gateway: Handler of all other requests.
    """

    async def handle(exchange: StreamExchange) -> None:
        target = await target_of(exchange)
        if not target:
            await gateway(exchange)
            return
        answer = await _route(exchange, attrs.evolve(exchange.head, target=target))
        if answer is not None:
            await exchange.respond(answer)

    async def _route(exchange: StreamExchange, head: RequestHead) -> Response | None:
        found = split_target(head.target)
        router = find(found[0]) if found is not None else None
        if found is None or router is None:
            message = f"no router is running at {head.path}; a router's path is {PREFIX}NAMESPACE/NAME/v1"
            missing = refused(404, message, "router_not_found").response
            return missing if found is None else refusal_at(found[1].partition("?")[0], missing)
        client, model = client_of(exchange), f"{MODEL}{found[0]}"
        if client is not None and client.models and not matches_any(client.models, model):
            return refusal_at(found[1].partition("?")[0], model_refused(client, model).response)
        exchange.head = attrs.evolve(head, target=found[1])
        refusal = router.request_filter(exchange.head, exchange.peer)
        if refusal is None:
            await router.handler(exchange)
        return refusal

    return handle


async def refuse_models(exchange: StreamExchange) -> None:
    """Answer a request outside of ModelRouters at a gateway that serves nothing else: a `StreamHandler`."""
    head = exchange.head
    path = head.path.rstrip("/") or "/"
    hint = f"this gateway serves ModelRouters only ({SETTING} {ROUTERS}); a router's path is {PREFIX}NAMESPACE/NAME/v1"
    if is_preflight(head):
        answer = preflight_answer(head)
    elif is_read_only(head) and path in HEALTH_PATHS:
        answer = Response.json(200, {"status": "ok"})
    elif is_read_only(head) and path == "/":
        answer = Response.text(200, f"LLMKube gateway: {hint}\n")
    else:
        answer = refusal_at(path, refused(403, hint, "routers_only").response)
    await exchange.respond(answer)

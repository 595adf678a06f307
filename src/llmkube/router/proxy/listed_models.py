"""The models that a client of a router can ask for, in OpenAI's words and in Ollama's: each is asked of the policy."""

from collections.abc import Callable

import attrs

from llmkube.base.http.exchange import StreamExchange
from llmkube.base.http.message import Headers, Response
from llmkube.router.auth.principals import principal_of
from llmkube.router.config.routing_config import Backend, RoutingConfig
from llmkube.router.ollama_lists import Listed, ollama_list, refused_method
from llmkube.router.policy.request_facts import Principal, facts_of
from llmkube.router.proxy.decisions import Decisions
from llmkube.router.proxy.routing import Routing
from llmkube.router.refusals import refused


@attrs.frozen(eq=False)
class ListedModels:
    """The lists of one router.

    Attributes:
        routing: Returns what counts now.
        decisions: Says where a request for a model would go.
        created: When the router began, in seconds since 1970.
    """

    routing: Callable[[], Routing]
    decisions: Decisions
    created: int

    def models(self, exchange: StreamExchange, wanted: str) -> Response:
        """List what this client can ask for: each id reaches a backend as it is."""
        if exchange.head.method not in ("GET", "HEAD"):
            said = f"{exchange.head.method} is not allowed on {exchange.head.path}"
            return refused(405, said, "method_not_allowed", {"Allow": "GET, HEAD"}).response
        found = [
            {"id": model_id, "object": "model", "created": self.created, "owned_by": owner}
            for model_id, owner, _ in self._routable(exchange)
        ]
        if not wanted:
            return Response.json(200, {"object": "list", "data": found})
        one = next((each for each in found if each["id"] == wanted), None)
        if one is None:
            there_is = ", ".join(repr(each["id"]) for each in found) or "none"
            return refused(404, f"no model {wanted!r}; there is {there_is}", "model_not_found").response
        return Response.json(200, one, headers=Headers())

    def _routable(self, exchange: StreamExchange) -> list[tuple[str, str, Backend]]:
        """Return each name that this client can ask for, its owner, and the backend that is asked first."""
        routing = self.routing()
        principal = principal_of(exchange.head.lines, exchange.peer, routing.clients) or Principal()
        config = routing.config
        found = []
        for model_id, owner in _ids(config):
            decision = self.decisions.of(config, facts_of(config, {}, {"model": model_id}, principal))
            if decision.order:
                found.append((model_id, owner, decision.order[0].backend))
        return found

    def lists(self, exchange: StreamExchange, path: str) -> Response:
        """Say in Ollama's words what this client can ask for."""
        if (refusal := refused_method(exchange.head.method, path)) is not None:
            return refusal
        found = [
            Listed(model_id, not backend.provider and not backend.missing, backend.capabilities)
            for model_id, _, backend in self._routable(exchange)
        ]
        return ollama_list(path, exchange.body, found, self.created)


def _ids(config: RoutingConfig) -> list[tuple[str, str]]:
    """Return each name that a client could ask for, with the owner of the first backend that it may mean."""
    found = {backend.model_id: backend.provider or "llmkube" for backend in config.backends.values()}
    for rule in config.rules:
        for pattern in rule.match.models:
            if not set(pattern) & set("*?["):
                found.setdefault(pattern, "llmkube")
    return list(found.items())

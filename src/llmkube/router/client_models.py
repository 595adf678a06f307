"""The models that the key of a request may use at a gateway. ModelRouters have `policy.permits` instead.

A pattern is compared with the requested id, and with the names of its service. A ModelRouter is the model
`routers/NAMESPACE/NAME`.
"""

from collections.abc import Sequence

import attrs

from llmkube.base.http.exchange import StreamExchange
from llmkube.router.backends import Found, ModelDirectory, find_model
from llmkube.router.config.routing_config import matches_any
from llmkube.router.policy.request_facts import Principal
from llmkube.router.refusals import RefusedError, refused


def client_of(exchange: StreamExchange) -> Principal | None:
    """Return the holder of a request's key, if the gateway has identified it by an issued one."""
    return exchange.client if isinstance(exchange.client, Principal) else None


def may_use(exchange: StreamExchange, directory: ModelDirectory, model_id: str, service: str) -> bool:
    """Return whether the client may use a model.

    Args:
        exchange: The request.
        directory: The models.
        model_id: An id of the model.
        service: Namespace and name of its service; "" for none.
    """
    client, name = client_of(exchange), service.rpartition("/")[2]
    if client is None or client.models is None:
        return True
    found = directory.lookup(name) if name else None
    names = [model_id, *filter(None, [service]), *([name] if found is not None and found.service == service else [])]
    return any(matches_any(client.models, each) for each in names)


def permitted_model(exchange: StreamExchange, directory: ModelDirectory, named: object, path: str) -> tuple[str, Found]:
    """Return the id and the state of the model that a request names: `find_model` for a client with a key.

    Raises:
        RefusedError: The client may not use the model, or the model does not exist, or does not serve this path.
    """
    client = client_of(exchange)
    if client is None or client.models is None:
        return find_model(directory, named, path)
    model_id, found = find_model(_Visible(directory, exchange), named, path)
    if not may_use(exchange, directory, model_id, found.service):
        raise model_refused(client, model_id)
    return model_id, found


def model_refused(client: Principal, model_id: str) -> RefusedError:
    """Return the error for a model that a key does not allow."""
    allowed = ", ".join(client.models or ())
    message = f"the key for {client.name} may not use the model {model_id}, only {allowed}"
    return refused(403, message, "model_not_allowed")


@attrs.frozen
class _Visible:
    """A directory that lists only the models that the client may use."""

    directory: ModelDirectory
    exchange: StreamExchange

    def model_ids(self) -> Sequence[str]:
        """Return the ids that the client may use."""
        return self._visible(self.directory.model_ids())

    def aliases(self) -> Sequence[str]:
        """Return the aliases that the client may use."""
        return self._visible(self.directory.aliases())

    def lookup(self, model_id: str) -> Found | None:
        """Return the state of any model."""
        return self.directory.lookup(model_id)

    def _visible(self, ids: Sequence[str]) -> list[str]:
        found = [(each, self.directory.lookup(each)) for each in ids]
        return [each for each, one in found if one and may_use(self.exchange, self.directory, each, one.service)]

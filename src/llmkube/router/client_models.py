"""The models that the key of a request may use at a gateway. ModelRouters have `policy.permits` instead.

A pattern is compared with the requested id, and with the names of its service. A ModelRouter is the model
`routers/NAMESPACE/NAME`.
"""

from llmkube.base.http.exchange import StreamExchange
from llmkube.router.backends import Found, ModelDirectory, find_model
from llmkube.router.config.routing_config import matches_any
from llmkube.router.policy.request_facts import Principal
from llmkube.router.refusals import RefusedError, refused


def client_of(exchange: StreamExchange) -> Principal | None:
    """Return the holder of a request's key, if the gateway has identified it by an issued one."""
    return exchange.client if isinstance(exchange.client, Principal) else None


def may_use(exchange: StreamExchange, directory: ModelDirectory, model_id: str) -> bool:
    """Return whether the client may use a model of the directory, or a ModelRouter, by its id."""
    client = client_of(exchange)
    if client is None or not client.models:
        return True
    found = directory.lookup(model_id)
    service = found.service if found is not None else ""
    short = service.rpartition("/")[2]
    is_unique = (one := directory.lookup(short)) is not None and one.service == service
    return any(matches_any(client.models, each) for each in (model_id, service, short if is_unique else "") if each)


def permitted_model(exchange: StreamExchange, directory: ModelDirectory, named: object, path: str) -> tuple[str, Found]:
    """Return the id and the state of the model that a request names: `find_model` for a client with a key.

    Raises:
        RefusedError: The client may not use the model, or the model does not exist, or does not serve this path.
    """
    client = client_of(exchange)
    is_limited = client is not None and bool(client.models)
    ids = [each for each in directory.model_ids() if may_use(exchange, directory, each)] if is_limited else None
    exchange.about, found = find_model(directory, named, path, ids)
    if client is not None and not may_use(exchange, directory, exchange.about):
        raise model_refused(client, exchange.about)
    return exchange.about, found


def model_refused(client: Principal, model_id: str) -> RefusedError:
    """Return the error for a model that a key does not allow."""
    message = f"the key for {client.name} may not use the model {model_id}, only {', '.join(client.models)}"
    return refused(403, message, "model_not_allowed")

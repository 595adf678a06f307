"""The way from this machine to a service: a gateway's address, a host's, a pod behind its API server."""

import ipaddress
from urllib.parse import urlsplit

import attrs

from llmkube.base.http.message import netloc
from llmkube.cli.target_cluster import Cluster
from llmkube.cli.view.describe import summary
from llmkube.cli.view.locations import Engine, find_engines
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import pods_of
from llmkube.programs.failures import CommandError


@attrs.frozen
class Way:
    """Where to send a request, and what to call the model there.

    Attributes:
        host: An address.
        port: A TCP port.
        model_id: What the request's `model` says.
        name: The way in words.
        api_key: What to show there; "" for nothing.
        pod: The pod that has the address; it is reached through the API server, wherever its network is.
    """

    host: str
    port: int
    model_id: str
    name: str
    api_key: str = attrs.field(default="", repr=False)
    pod: Key | None = None

    @property
    def url(self) -> str:
        """The base of all URLs."""
        return f"http://{netloc((self.host, self.port))}"


def gateway_way(service: InferenceService) -> Way | None:
    """Return the way through the gateway of `llmkube up`, or None if the service's endpoint is none on this machine.

    `up` writes its gateway's address into `status.endpoint`; a cluster writes the name of a Service there.
    """
    parts = urlsplit(service.status.endpoint)
    try:
        if parts.scheme != "http" or parts.hostname is None or not ipaddress.ip_address(parts.hostname).is_loopback:
            return None
        port = parts.port or 80
    except ValueError:  # a name, or no port at all
        return None
    return Way(parts.hostname, port, str(service.key), f"the gateway at {parts.netloc}")


def direct_way(service: InferenceService, engine: Engine) -> Way:
    """Return the way to one engine: straight to a host's address, through the API server to a pod."""
    where = f"the engine on {engine.host or 'a node'}"
    if engine.pod:
        return Way(engine.address, engine.port, service.key.name, where, pod=Key(service.key.namespace, engine.pod))
    return Way(engine.address, engine.port, service.key.name, where)


async def find_way(cluster: Cluster, service: InferenceService) -> Way:
    """Return how to reach a service now.

    Raises:
        CommandError: There is no way now; the sentence says why and what to do.
    """
    if service.spec.suspend or service.spec.replicas == 0:
        way_out = "set spec.suspend to false" if service.spec.suspend else f"`llmkube scale {service.key.name} 1`"
        raise CommandError(f"InferenceService {service.key} is stopped; {way_out} starts it")
    through_gateway = gateway_way(service)
    if through_gateway is not None:
        return through_gateway
    engines = await find_engines(cluster, service.key.namespace, service.key.name)
    ready = [engine for engine in engines if engine.ready]
    if ready:
        return direct_way(service, ready[0])
    if service.status.ready_replicas and not engines and (selector := pods_of(service)):
        raise CommandError(
            f"InferenceService {service.key} is served by pods, and no EndpointSlice says at which address; "
            f"`kubectl get pods -n {service.key.namespace} -l {selector}` shows them"
        )
    if service.status.ready_replicas and not engines:
        raise CommandError(
            f"InferenceService {service.key} is served, but its agent has published no address; "
            "start that agent with --host-ip and an address that this machine reaches"
        )
    raise CommandError(await not_ready(cluster, service))


async def not_ready(cluster: Cluster, service: InferenceService) -> str:
    """Say that a service is not ready, why, and how to wait for it."""
    try:
        model = await cluster.client.get(Model, Key(service.key.namespace, service.spec.model_ref))
    except NotFoundError:
        model = None
    return (
        f"InferenceService {service.key} does not answer yet ({summary(service, model)}); "
        f"`llmkube status {service.key.name} --watch` shows how far it is"
    )

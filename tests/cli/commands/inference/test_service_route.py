import attrs
import pytest

from cli.cli_objects import condition, service
from cli.memory_cluster import open_cluster_client
from llmkube.cli.commands.inference.service_route import Way, find_way, gateway_way
from llmkube.cli.target_cluster import Cluster
from llmkube.k8s.builtins import EndpointSlice
from llmkube.k8s.resource import Key
from llmkube.programs.failures import CommandError, in_one_sentence


def piece(host, address, *, ready):
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"chat.{host}",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "chat", "inference.llmkube.dev/host": host},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}],
        "ports": [{"name": "http", "port": 51234, "protocol": "TCP"}],
    }


async def way_to(found, *pieces):
    with in_one_sentence():  # the cluster's nurseries raise groups
        async with open_cluster_client() as client:
            for each in pieces:
                await client.apply(EndpointSlice, each, field_manager="test")
            return await find_way(Cluster(client, "default"), found)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:8080/v1/chat/completions", "http://127.0.0.1:8080"),
        ("http://[::1]:9000/v1/chat/completions", "http://[::1]:9000"),
        ("http://chat.default.svc.cluster.local:8080/v1/chat/completions", None),
        ("http://10.0.0.5:8080/v1", None),
        ("https://127.0.0.1:8080/v1", None),
        ("http://127.0.0.1:99999/v1", None),
        ("", None),
    ],
)
def test_a_gateway_is_known_by_its_address(endpoint, url):
    """Only a plain URL on this machine is the gateway of `llmkube up`; a cluster's names are not."""
    way = gateway_way(service(endpoint=endpoint))
    assert (way.url if way else None) == url


async def test_a_ready_engine_is_reached_directly():
    """In a cluster the request goes to the address of an engine that answers."""
    pieces = (piece("a", "10.0.0.4", ready=False), piece("b", "10.0.0.5", ready=True))
    assert await way_to(service(), *pieces) == Way("10.0.0.5", 51234, "chat", "the engine on b")


async def test_a_pod_is_known_by_its_name():
    """What a slice says of the pod behind an address is part of the way: it leads through the API server."""
    slice_ = piece("node-1", "10.0.0.5", ready=True)
    slice_["endpoints"][0]["targetRef"] = {"kind": "Pod", "name": "chat-0", "namespace": "default"}
    way = await way_to(service(selector="app=chat"), slice_)
    assert (way.host, way.port, way.pod) == ("10.0.0.5", 51234, Key("default", "chat-0"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            service(readyReplicas=1),
            "its agent has published no address; start that agent with --host-ip",
        ),
        (
            service(readyReplicas=1, selector="app=chat"),
            "is served by pods, and no EndpointSlice says at which address; `kubectl get pods -n default -l app=chat`",
        ),
        (
            service("chat", condition("Loaded", False, "Loading"), phase="Creating"),
            r"does not answer yet \(Creating: a Model called chat\)",
        ),
    ],
)
async def test_without_a_way_the_reason_is_told(found, words):
    """What is missing is named, and what to do about it."""
    with pytest.raises(CommandError, match=words):
        await way_to(found)


async def test_a_stopped_service_is_no_mystery():
    """A service that nobody wants to run is told as that, with the command that starts it."""
    found = service(endpoint="http://127.0.0.1:8080/v1")
    stopped = attrs.evolve(found, spec=attrs.evolve(found.spec, replicas=0))
    with pytest.raises(CommandError, match="is stopped; `llmkube scale chat 1` starts it"):
        await way_to(stopped)
    suspended = attrs.evolve(found, spec=attrs.evolve(found.spec, suspend=True))
    with pytest.raises(CommandError, match=r"set spec\.suspend to false"):
        await way_to(suspended)

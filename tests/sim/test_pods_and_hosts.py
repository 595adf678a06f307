"""One service in pods and on a host: one Service, both kinds of endpoints, one status with the sum."""

import attrs
import trio

from controller.podobjects import SETTINGS
from llmkube.k8s.builtins import Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.service_health import State, pods_of, service_health
from llmkube.k8s.workloads import Deployment
from sim.machine import Script
from sim.world import ADDRESS, agent_settings, open_world

ON_NODES = attrs.evolve(SETTINGS, host_paths=("/data",))
KEY = Key("default", "chat")


def world_with_pods(**changes):
    return open_world(settings=agent_settings(lease_renew_seconds=5.0, **changes), workloads=ON_NODES)


async def apply_both(world, **spec):
    await world.apply_model("chat-mac", {"source": "builtin://demo", "hardware": {"accelerator": "metal"}})
    await world.apply_model("chat", {"source": "/data/m.gguf", "hardware": {"accelerator": "cuda"}})
    hosts = {"modelRef": "chat-mac", **spec.pop("hosts", {})}
    await world._apply(InferenceService, "chat", {"modelRef": "chat", "hosts": hosts, **spec})


async def roll_out(world, ready=1):
    """Report that the Deployment has its pods, `ready` of them ready."""
    live = await world.client.get(Deployment, KEY)
    count = live.spec.replicas
    status = {
        "observedGeneration": live.metadata.generation,
        "replicas": count,
        "updatedReplicas": count,
        "readyReplicas": ready,
    }
    patch = {"status": status}
    await world.client.patch(Deployment, KEY, patch, subresource="status", field_manager="kube-controller-manager")


async def service_health_of(world):
    await trio.lowlevel.checkpoint()
    service = await world.client.get(InferenceService, KEY)
    return service_health(service, await world.client.get(Model, KEY))


async def counts(world):
    status = (await world.service()).get("status", {})
    return status.get("phase"), status.get("readyReplicas", 0), status.get("desiredReplicas")


async def deployments(world):
    return [one.key.name for one in (await world.client.list(Deployment, namespace=KEY.namespace)).items]


async def test_one_service_leads_to_pods_and_to_a_host(autojump_clock):
    """The Service selects the pods and keeps its port; the host's slice is added under the same port name."""
    async with world_with_pods() as world:
        await apply_both(world, endpoint={"port": 9000})
        await world.until(world.ready_addresses, 1)
        await world.until(counts, ("Progressing", 1, 2), world)
        assert (await service_health_of(world)).state is State.WAITING
        await roll_out(world)
        await world.until(counts, ("Ready", 2, 2), world)
        service = encode(await world.client.get(Service, KEY))
        assert service["spec"]["selector"]["app"] == "chat"
        assert [(one["name"], one["port"]) for one in service["spec"]["ports"]] == [("http", 9000)]
        assert world.live("chat") == ["sim"]
        assert await world.slices() == [("sim", ADDRESS, True)]
        assert ":9000/" in (await world.service())["status"]["endpoint"]
        assert (await service_health_of(world)).state is State.READY
        assert (await world.condition("Available"))[2] == "2 of 2 replicas ready, 1 of them on hosts"


async def test_only_the_controller_sets_conditions(autojump_clock):
    """The host sets no condition of the service; its conditions from before the pods are removed for good."""
    async with world_with_pods() as world:
        await world.serve(model="chat-mac")
        assert (await world.condition("Loaded"))[0] == "True"
        await apply_both(world)
        await world.until(world.condition, lambda found: found[1] == "Released")
        await roll_out(world)
        await world.until(counts, ("Ready", 2, 2), world)
        await trio.sleep(600)
        assert (await world.condition("Loaded"))[1] == "Released"
        assert (await world.condition("Accepted"))[:2] == ("True", "Accepted")
        assert "spec.hosts" not in (await world.condition("SpecHonoured"))[2]
        assert await counts(world) == ("Ready", 2, 2)
        assert pods_of(await world.client.get(InferenceService, KEY))
        assert len(world.machine.spawned) == 1, "its engine continues"


async def test_either_serves_while_the_other_does_not(autojump_clock):
    """A dead host costs its replica and no other, and so do failing pods; the message names the missing one."""
    async with world_with_pods() as world:
        await apply_both(world)
        await world.until(world.ready_addresses, 1)
        await roll_out(world)
        await world.until(counts, ("Ready", 2, 2), world)
        await roll_out(world, ready=0)
        await world.until(counts, ("Progressing", 1, 2), world)
        assert (await world.condition("Available"))[0] == "True"
        assert "; pods: " in (await world.condition("Progressing"))[2]
        await roll_out(world)
        await world.first.die()
        await world.until(counts, ("Progressing", 1, 2), world)
        assert (await world.condition("Progressing"))[1] == "NoHost"
        assert "; hosts: " in (await world.condition("Progressing"))[2]
        assert (await world.condition("Available"))[0] == "True"


async def test_a_runtime_that_hosts_do_not_run_is_named_in_the_status(autojump_clock):
    """Pods keep serving with vLLM; `Degraded` names spec.hosts, the runtime and the fix."""
    refused = "spec.hosts: agents do not run spec.runtime vllm: set llamacpp, "
    async with world_with_pods() as world:
        await apply_both(world, runtime="vllm")
        weights = {"source": "org/repo", "format": "safetensors"}
        await world.apply_model("chat", {**weights, "hardware": {"accelerator": "cuda"}})
        await world.until(deployments, ["chat"], world)
        await roll_out(world)
        await world.until(counts, ("Progressing", 1, 2), world)
        assert (await world.condition("Degraded"))[:2] == ("True", "Invalid")
        assert f"1 of 2 replicas ready; hosts: {refused}" in (await world.condition("Degraded"))[2]
        assert (await world.condition("Available"))[0] == "True"
        health = await service_health_of(world)
        assert refused in health.message


async def test_a_service_may_be_on_hosts_alone_for_a_while(autojump_clock):
    """Without desired pods it is Ready by its host, and stopped only when neither is desired."""
    async with world_with_pods() as world:
        await apply_both(world, replicas=0)
        await world.until(counts, ("Ready", 1, 1), world)
        assert (await service_health_of(world)).state is State.READY
        await apply_both(world, replicas=0, hosts={"replicas": 0})
        await world.until(counts, ("Stopped", 0, 0), world)
        assert (await service_health_of(world)).state is State.STOPPED
        await world.until(world.live, [], "chat")


async def test_a_model_that_hosts_do_not_serve_is_named(autojump_clock):
    """`hosts.modelRef` must be a Model for hosts; the pods serve meanwhile."""
    async with world_with_pods() as world:
        await apply_both(world, hosts={"modelRef": "chat"})
        await world.until(world.phase, "Creating")
        await roll_out(world)
        await world.until(counts, ("Progressing", 1, 2), world)
        degraded = await world.condition("Degraded")
        assert degraded[:2] == ("True", "Invalid")
        assert 'spec.hosts.modelRef: Model "chat" requires cuda' in degraded[2]


async def test_a_host_that_loads_slowly_is_waited_for(autojump_clock):
    """While the host's engine loads, the pods serve, and the service is progressing and not failing."""
    async with world_with_pods() as world:
        world.machine.default = Script(load_seconds=60)
        await apply_both(world)
        await trio.sleep(10)
        await roll_out(world)
        await world.until(counts, ("Progressing", 1, 2), world)
        assert (await service_health_of(world)).state is State.WAITING
        await world.until(counts, ("Ready", 2, 2), world, seconds=90)

"""Objects of an optional kind are created while the cluster has the kind, and fail no service without it."""

import pytest
import trio

from controller.cluster import SETTLED
from controller.podcluster import KUBE, Hands, open_pods
from llmkube.controller.reconciler import RETRY
from llmkube.controller.writes.owned_kinds import DISCOVERY_SECONDS, INSTALL_POLL_SECONDS
from llmkube.k8s.builtins import CustomResourceDefinition
from llmkube.k8s.resource import Key
from llmkube.k8s.workloads import Deployment, HTTPRoute, PodMonitor, ServiceLevelObjective


async def test_pod_monitors_come_with_their_kind(autojump_clock):
    """If a Prometheus operator is installed later, services get a PodMonitor then; before, nothing is tried."""
    async with open_pods() as hands:
        await hands.bring_up()
        await hands.install(PodMonitor)
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        spec = (await hands.json(PodMonitor))["spec"]
        assert spec["podMetricsEndpoints"][0]["port"] == "http"
        before = len(hands.cluster.writes)
        await trio.sleep(600)
        assert hands.cluster.writes[before:] == []


GATEWAY = {"gateway": {"enabled": True, "gatewayRef": {"name": "edge", "namespace": "infra"}}}


async def honoured(hands: Hands) -> tuple[str, str]:
    service = await hands.cluster.service()
    [found] = [one for one in service.status.conditions if one.type == "SpecHonoured"]
    return found.status, found.message


async def test_both_are_made_once_their_kinds_are_there(autojump_clock):
    """Before, the service names the missing kinds; after, it has its objects, follows edits and deletes them again."""
    async with open_pods() as hands:
        slo = {"objective": "99.5"}
        await hands.bring_up(slo=slo, endpoint=GATEWAY)
        status, message = await honoured(hands)
        assert status == "False"
        assert "spec.slo (Pyrra is not installed)" in message
        assert "spec.endpoint.gateway (the Gateway API is not installed)" in message

        await hands.install(ServiceLevelObjective, HTTPRoute)
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        _, message = await honoured(hands)
        assert "spec.slo" not in message
        assert "gateway" not in message
        assert await hands.names(ServiceLevelObjective) == ["chat-availability"]
        assert (await hands.cluster.service()).status.gateway.route_ready is False
        parents = {"status": {"parents": [{"conditions": [{"type": "Accepted", "status": "True"}]}]}}
        key = (await hands.client.list(HTTPRoute, namespace="ml")).items[0].key
        await hands.client.patch(HTTPRoute, key, parents, subresource="status", field_manager=KUBE)
        await trio.sleep(SETTLED)
        gateway = (await hands.cluster.service()).status.gateway
        assert (gateway.route_ready, gateway.model_name) == (True, "phi")

        await hands.apply(slo={**slo, "name": "other"}, endpoint=GATEWAY)
        assert await hands.names(ServiceLevelObjective) == ["other"]
        before = await hands.json(Deployment)
        await hands.apply()
        assert await hands.names(ServiceLevelObjective) == await hands.names(HTTPRoute) == []
        assert (await hands.cluster.service()).status.gateway is None
        assert (await hands.json(Deployment))["metadata"]["generation"] == before["metadata"]["generation"]


@pytest.mark.parametrize("kind", [PodMonitor, ServiceLevelObjective, HTTPRoute], ids=lambda kind: kind.RESOURCE.kind)
async def test_a_kind_that_was_uninstalled_fails_no_service(autojump_clock, kind):
    """An edit is still applied, and once the kind is back the service has its object again."""
    async with open_pods() as hands:
        await hands.install(PodMonitor, ServiceLevelObjective, HTTPRoute)
        await trio.sleep(INSTALL_POLL_SECONDS)
        spec = {"slo": {"objective": "99.5"}, "endpoint": GATEWAY}
        await hands.bring_up(**spec)
        [name] = await hands.names(kind)
        await hands.client.delete(CustomResourceDefinition, Key("", kind.RESOURCE.full_name))
        await trio.sleep(INSTALL_POLL_SECONDS)
        await hands.create_service(**spec, podLabels={"team": "ml"}, suspend=True)
        assert (await hands.where()).startswith("Suspended/")
        assert (await hands.json(Deployment))["spec"]["template"]["metadata"]["labels"]["team"] == "ml"
        errors = hands.cluster.reconciles("inferenceservice", "error")
        await trio.sleep(INSTALL_POLL_SECONDS)
        assert hands.cluster.reconciles("inferenceservice", "error") == errors
        await hands.install(kind)
        await trio.sleep(INSTALL_POLL_SECONDS + SETTLED)
        assert await hands.names(kind) == [name]


async def test_another_404_is_not_taken_for_a_missing_kind(autojump_clock):
    """A 404 about a deleted owner or namespace is retried after growing pauses, for as long as it lasts."""
    async with open_pods() as hands:
        await hands.install(PodMonitor)
        await trio.sleep(INSTALL_POLL_SECONDS)
        await hands.start()
        faults = hands.cluster.faults
        faults.refusals["podmonitors"], faults.refused = 'namespaces "ml" not found', (404, "NotFound")
        faults.delays["podmonitors"] = 1.0  # so that time passes while it is read
        asked = len(faults.calls)
        await hands.finish_job()
        await trio.sleep(60)
        writes = [one for one in faults.calls[asked:] if one.resource == "podmonitors" and "patch" in one.verbs]
        assert 0 < len(writes) < 10
        faults.refusals.clear()
        await trio.sleep(RETRY.cap_seconds + 5)
        assert await hands.names(PodMonitor) == ["chat"]


async def test_discovery_without_a_response_is_retried(autojump_clock):
    """A request without a response is given up after a while, and the kind is found at the next discovery."""
    async with open_pods() as hands:
        await hands.bring_up(endpoint=GATEWAY)
        await hands.install(HTTPRoute)
        hands.cluster.faults.delays["httproutes"] = 100_000.0
        await trio.sleep(INSTALL_POLL_SECONDS)
        hands.cluster.faults.delays.clear()
        await trio.sleep(INSTALL_POLL_SECONDS + DISCOVERY_SECONDS + SETTLED)
        assert await hands.names(HTTPRoute) == ["chat"]

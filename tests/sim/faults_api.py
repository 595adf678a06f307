"""Faults of the API server, of the network to it, of the controller, and other clients' writes to our objects."""

import math

import trio

from llmkube.k8s.builtins import EndpointSlice, Lease, Service
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ApiError, NotFoundError
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CLAIM_LABEL
from sim.invariants import LEASES, RECONNECT_SECONDS, SLICES
from sim.stage import NotApplicable, api_away, fault, recreate_service, row, span, together

REPEAT_SECONDS = 310.0
"""Other clients' changes to a slice or a Service stay until the agent reapplies it."""


# -- the API server, as seen by one host
def answers(kind, *, low=5, high=300):
    """Return a fault in which every response is wrong in the same way for a while."""

    async def inject(stage, rng):
        host = stage.host(rng)
        with stage.api_faults(host, kind=kind):
            if rng.random() < 0.7:
                host.network.sever()
            await trio.sleep(span(rng, low, high))

    return inject


for _kind, _codes in {
    "401": "A18",
    "403": "A17",
    "429": "A14",
    "500": "A15",
    "503": "A15",
    "no such page": "A16",
    "captive portal": "A22",
    "no object": "A22",
    "half-open": "A3",
}.items():
    row(f"api-{_kind.replace(' ', '-')}", _codes, f"every answer is {_kind}", answers(_kind))


def lists(kind):
    """Return a fault with false lists around a wake, often for longer than the pause between two lists."""

    async def inject(stage, rng):
        host = stage.host_with_agent(rng)
        with stage.api_faults(host, kind=kind):
            host.asleep_seconds += 60.0  # a wake: everything is listed again
            stage.monitor.false_list_at = math.inf
            await trio.sleep(host.settings.lease_renew_seconds + span(rng, 0.5, 8))
            stage.monitor.false_list_at = trio.current_time()

    return inject


row("empty-lists", "A23", "lists are suddenly empty", lists("empty lists"))
row("old-lists", "A11", "lists come from a server that lags behind", lists("old lists"))


@fault("A23", "watches report that every service was deleted")
async def mass_deletion(stage, rng):
    desired, now = stage.desired, trio.current_time()
    if len(desired.specs) < 2 or any(now < desired.touched[name] + 30 for name in desired.specs):
        raise NotApplicable  # a host may know of fewer than two, and a single deletion is believed
    host = stage.host_with_agent(rng)
    with stage.api_faults(host, denies=True):
        host.network.sever()
        await trio.sleep(span(rng, 2, 5))


@fault("A24", "the API server is away for seconds")
async def api_blip(stage, rng):
    await api_away(stage, span(rng, 0.5, 20), stage.host(rng))


@fault("A24", "the API server is away for minutes")
async def api_outage(stage, rng):
    await api_away(stage, span(rng, 60, 900), stage.host(rng))


@fault("A24", "the API server is away for all clients")
async def api_outage_for_all(stage, rng):
    await api_away(stage, span(rng, 10, 600), *stage.world.hosts.values(), stage.world.controller)


@fault("A15", "a burst of server errors")
async def burst_of_errors(stage, rng):
    host = stage.host(rng)
    with stage.api_faults(host, errors=rng.randint(1, 50)):
        host.network.sever()
        await trio.sleep(span(rng, 10, 200))


@fault("A21", "every answer takes seconds")
async def slow_answers(stage, rng):
    with stage.api_faults(stage.host(rng), slow_seconds=span(rng, 0.2, 4)):
        await trio.sleep(span(rng, 30, 400))


@fault("A21 N6", "answers come after all timeouts of clients")
async def too_slow_answers(stage, rng):
    with stage.api_faults(stage.host(rng), slow_seconds=span(rng, 10, 70)):
        await trio.sleep(span(rng, 30, 300))


@fault("A2", "every connection is reset")
async def reset(stage, rng):
    host = stage.host(rng)
    with stage.monitor.disturbed(host):
        for _ in range(rng.choice((1, 1, 10))):
            host.network.sever()
            await trio.sleep(span(rng, 0.1, 15))


@fault("A7", "watches are aborted in the middle of a line")
async def torn_lines(stage, rng):
    host = stage.host(rng)
    with stage.api_faults(host, torn=True):
        for _ in range(rng.randint(1, 5)):
            host.network.sever()
            await trio.sleep(span(rng, 1, 60))


@fault("A6", "lists are forgotten between two pages")
async def torn_pages(stage, rng):
    host = stage.host_with_agent(rng)
    with stage.api_faults(host, kind="torn pages"):
        host.asleep_seconds += 60.0  # a wake: everything is listed again
        await trio.sleep(span(rng, 5, 200))


@fault("A8", "watches send a line that never ends")
async def endless_line(stage, rng):
    host = stage.host(rng)
    with stage.api_faults(host, endless=True):
        host.network.sever()
        await trio.sleep(span(rng, 1, 60))


@fault("A30", "objects have fields and values of a later version, while a user edits one")
async def newer_objects(stage, rng):
    name, host = stage.pick_desired(rng), stage.host(rng)
    with stage.api_faults(host, newer=True):
        host.network.sever()
        await trio.sleep(span(rng, 2, 20))
        await stage.edit(rng, name)
        await trio.sleep(span(rng, 1, 100))


@fault("A9", "watches report everything twice")
async def duplicate_events(stage, rng):
    with stage.api_faults(stage.host(rng), twice=True):
        await trio.sleep(span(rng, 10, 600))


@fault("A3", "open connections become silent")
async def hush(stage, rng):
    host = stage.host(rng)
    with stage.monitor.disturbed(host):
        host.network.hush()
        await trio.sleep(100)


@fault("A1 A4", "old events are compacted while connections are reset: 410")
async def compaction(stage, rng):
    host = stage.host(rng)
    with stage.api_faults(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 1, 40))
        stage.monitor.store.compact()


@fault("A5", "old events are compacted under watches that are behind")
async def compaction_under_watches(stage, rng):
    stage.monitor.store.compact()
    await trio.lowlevel.checkpoint()


@fault("A27", "writes are applied, and their answers get lost")
async def lost_answers(stage, rng):
    with stage.api_faults(stage.host(rng), lost_answers=rng.randint(1, 12)):
        await trio.sleep(span(rng, 5, 300))


@fault("A29", "a webhook refuses every status")
async def refused_status(stage, rng):
    with stage.api_faults(stage.host(rng), no_status=True):
        await trio.sleep(span(rng, 5, 200))


@fault("A10", "a service is deleted while its host receives nothing")
async def delete_while_cut_off(stage, rng):
    name, host = stage.pick_desired(rng), stage.host(rng)
    with stage.api_faults(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 0.1, 30))
        await stage.desired.delete(stage.world, name)
        await trio.sleep(span(rng, 0.1, 100))


@fault("A12", "a service is deleted and made again at once")
async def recreate(stage, rng):
    name = stage.pick_desired(rng)
    await recreate_service(stage, rng, name, span(rng, 0.01, 3))


@fault("A12", "a service is deleted and made again while its host receives nothing")
async def recreate_while_cut_off(stage, rng):
    name, host = stage.pick_desired(rng), stage.host(rng)
    with stage.api_faults(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 0.1, 30))
        await recreate_service(stage, rng, name, span(rng, 0.01, 10))
        await trio.sleep(span(rng, 0.1, 30))


@fault("A10", "an edit is made while its host receives nothing")
async def edit_while_cut_off(stage, rng):
    name, host = stage.pick_desired(rng), stage.host(rng)
    with stage.api_faults(host, down=True):
        host.network.sever()
        await trio.sleep(span(rng, 0.1, 60))
        await stage.edit(rng, name)
        await trio.sleep(span(rng, 0.1, 60))


# -- other clients' writes to our objects
def removed(kind, store_kind):
    """Return a fault that deletes one of the agents' objects."""

    async def inject(stage, rng):
        refs = sorted(ref.key for ref in stage.monitor.store.refs() if ref.kind == store_kind and ours(ref.key))
        if not refs:
            raise NotApplicable
        await _gone(stage, kind, rng.choice(refs))
        stage.monitor.excuse(REPEAT_SECONDS)

    def ours(key):
        return key.name not in {"llmkube-controller", "kubernetes"}

    return inject


async def _gone(stage, kind, key):
    try:
        await stage.world.client.delete(kind, key)
    except NotFoundError:
        raise NotApplicable from None


row("slice-deleted", "A13", "another client deletes an EndpointSlice", removed(EndpointSlice, SLICES))
row("service-deleted", "A13", "another client deletes a Service", removed(Service, "services"))
row("lease-deleted", "A13 N5", "another client deletes a Lease: a host's, or a claim", removed(Lease, LEASES))


@fault("A13", "a user deletes a Model in use, and creates it again later")
async def model_deleted(stage, rng):
    name = stage.pick_desired(rng)
    stage.desired.touched[name] = math.inf
    await _gone(stage, Model, Key("default", name))
    await trio.sleep(span(rng, 0.1, 300))
    if name in stage.desired.specs:
        await stage.desired.apply(stage.world, name)


@fault("A13", "another client writes other addresses and readiness into a slice")
async def slice_edited(stage, rng):
    slices = (await stage.world.client.list(EndpointSlice)).items
    if not slices:
        raise NotApplicable
    manifest = encode(rng.choice(slices))
    endpoint = {"addresses": ["192.0.2.99"], "conditions": {"ready": rng.random() < 0.5}}
    with together(stage.monitor.disturbed(host, REPEAT_SECONDS) for host in stage.world.hosts.values()):
        await _apply(stage, EndpointSlice, manifest, {"addressType": manifest["addressType"], "endpoints": [endpoint]})


@fault("A13", "another client writes nonsense into a status")
async def status_edited(stage, rng):
    found = await stage.world.service(stage.pick_desired(rng))
    if found is None:
        raise NotApplicable
    now = "2026-01-01T00:00:00Z"
    loaded = {"type": "Loaded", "status": "False", "reason": "Nonsense", "message": "", "lastTransitionTime": now}
    status = {"phase": "Failed", "conditions": [loaded]}
    await _apply(stage, InferenceService, found, {"status": status}, subresource="status")


async def _apply(stage, kind, found, body, subresource=""):
    metadata = {"name": found["metadata"]["name"], "namespace": found["metadata"]["namespace"]}
    try:
        await stage.world.client.apply(
            kind,
            {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind, "metadata": metadata, **body},
            field_manager="somebody",
            subresource=subresource,
        )
    except ApiError:
        raise NotApplicable from None


@fault("N5 B8", "a claim names an unknown host")
async def stale_claim(stage, rng):
    claims = (await stage.world.client.list(Lease, label_selector=CLAIM_LABEL)).items
    if not claims:
        raise NotApplicable
    try:
        await stage.world.client.patch(Lease, rng.choice(claims).key, {"spec": {"holderIdentity": "ghost"}})
    except ApiError:
        raise NotApplicable from None


# -- the controller
@fault("A24 A15", "the controller receives nothing")
async def controller_cut_off(stage, rng):
    controller = stage.world.controller
    await api_away(stage, span(rng, 1, 300), controller)


@fault("A3", "the controller's connections become silent")
async def controller_hush(stage, rng):
    stage.world.controller.network.hush()
    stage.monitor.excuse(RECONNECT_SECONDS)  # it receives no change meanwhile
    await trio.lowlevel.checkpoint()


@fault("A28", "the controller is killed, and another one starts")
async def controller_killed(stage, rng):
    controller = stage.world.controller
    if controller.network.dead:
        raise NotApplicable
    controller.kill()
    await trio.sleep(span(rng, 0.1, 200))
    controller.start()

"""The fields of a host's Lease.

Two clocks show whether a machine has slept.
"""

import datetime
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio

from llmkube.base.mailbox import Mailbox
from llmkube.controller.status.model_status import no_host_message
from llmkube.k8s.builtins import Lease
from llmkube.k8s.codec import decode
from llmkube.k8s.leases.live_hosts import LeaseTracker, LiveHosts
from llmkube.k8s.wire.names import ACCELERATORS_ANNOTATION, MACHINE_ANNOTATION, MEMORY_TOTAL_ANNOTATION
from llmkube.supervisor.cluster.host_lease import (
    EXPIRES_AFTER_RENEWALS,
    ClockReading,
    HostLease,
    lease_manifest,
    slept_seconds,
)
from llmkube.supervisor.values.host_addresses import HostAddress
from llmkube.supervisor.values.settings import AgentSettings

SETTINGS = AgentSettings("studio", Path("/s"), Path("/s/store"), "llama-server")
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def test_a_lease_outlives_four_missed_renewals():
    """One lost packet does not make a host dead: the duration is several renewal intervals."""
    settings = attrs.evolve(SETTINGS, host_name="Mac Studio", lease_renew_seconds=10.0)
    manifest = lease_manifest(settings, NOW, {"a": "b"})
    assert manifest["spec"]["leaseDurationSeconds"] == 10 * EXPIRES_AFTER_RENEWALS
    assert manifest["spec"]["holderIdentity"] == "Mac Studio"
    assert manifest["metadata"]["namespace"] == settings.lease_namespace
    assert manifest["metadata"]["annotations"]["a"] == "b"


def test_an_unknown_value_is_not_on_the_lease():
    """An annotation exists exactly when the host has a value for it."""
    metadata = lease_manifest(SETTINGS, NOW, {MACHINE_ANNOTATION: "mac (1)", MEMORY_TOTAL_ANNOTATION: ""})["metadata"]
    assert metadata["annotations"] == {ACCELERATORS_ANNOTATION: "metal", MACHINE_ANNOTATION: "mac (1)"}


def test_a_cordoned_host_lists_no_accelerator_to_a_controller():
    """The controller reads from the Lease that the host is alive and cordoned, and until when."""
    settings = attrs.evolve(SETTINGS, accelerators=frozenset({"metal", "cpu"}))
    tracker = LeaseTracker()
    for version, end, served in (("1", "", {"metal", "cpu"}), ("2", "until 18:00", set()), ("3", "", {"metal", "cpu"})):
        manifest = lease_manifest(settings, NOW, cordon=end)
        manifest["metadata"]["resourceVersion"] = version
        tracker.observe(decode(Lease, manifest), 0.0)
        hosts = tracker.hosts
        assert hosts == LiveHosts({"studio": frozenset(served)}, {"studio": end} if end else {})
        assert hosts.is_alive("studio")
        assert hosts.serving("metal") == ({"studio"} if served else set())
        assert ("studio is cordoned until 18:00" in no_host_message("metal", hosts)) == bool(end)


@pytest.mark.parametrize(
    ("wall", "monotonic", "slept"),
    [
        (5.0, 5.0, 0.0),
        (5.4, 5.1, 0.0),
        (12.0, 5.0, 0.0),
        (8 * 3600.0 + 5, 5.0, 8 * 3600.0),
        (-3600.0, 5.0, 0.0),
        (600.0, 600.0, 595.0),
        (5.0, 600.0, 595.0),
        (15.0, 5.0, 10.0),
    ],
)
def test_sleep_is_detected(wall, monotonic, slept):
    """Each row: both clocks after a planned wait of 5 s, and the duration of the sleep."""
    before = ClockReading(NOW, 100.0)
    now = ClockReading(NOW + datetime.timedelta(seconds=wall), 100.0 + monotonic)
    assert slept_seconds(before, now, 5.0) == pytest.approx(slept)


async def test_a_host_without_a_network_keeps_its_last_address():
    """Engines stay published at it, and the problem is recorded; before the first address there is none."""
    found, lost = HostAddress("192.168.1.5", "192.168.1.5", why="the route"), HostAddress(None, problem="no network")
    views = iter([lost, found, lost])

    async def address():
        await trio.lowlevel.checkpoint()
        return next(views)

    never = trio.Event()
    mailbox = Mailbox(HostAddress(None))
    ports = SimpleNamespace(address=address)
    lease = HostLease(None, SETTINGS, ports, mailbox, None, lambda: 0, print, print, never, never)
    seen = []
    for _ in range(3):
        await lease.refresh_address()
        seen.append((mailbox.value.address, mailbox.value.problem))
    assert seen == [(None, "no network"), ("192.168.1.5", ""), ("192.168.1.5", "no network")]

"""A host is alive as long as we see its Lease change, whatever the clocks of others say."""

import math

import attrs
import pytest

from controller.objects import lease
from llmkube.k8s.leases.live_hosts import LeaseTracker, LiveHosts
from llmkube.k8s.resource import Key

STUDIO = Key("llmkube-system", "studio")


def test_services_are_listed_by_host():
    """A host serves the accelerators of its own Lease and no other host's."""
    hosts = LiveHosts({"studio": frozenset({"metal", "cpu"}), "mini": frozenset({"cpu"})})
    assert hosts.serving("metal") == {"studio"}
    assert hosts.serving("cpu") == {"studio", "mini"}
    assert hosts.serving("cuda") == frozenset()
    assert hosts.is_alive("mini")
    assert not hosts.is_alive("pro")


def test_a_lease_is_overdue_when_it_has_not_changed_for_its_duration():
    """Seeing the same version again gives no new life; seeing another one does."""
    tracker = LeaseTracker()
    tracker.observe(lease(version="1", accelerators="metal, cpu"), 100.0)
    assert tracker.hosts == LiveHosts({"studio": frozenset({"metal", "cpu"})})
    assert tracker.next_deadline == 140.0
    tracker.observe(lease(version="1"), 130.0)
    assert tracker.next_deadline == 140.0
    assert tracker.overdue(139.9) == ()
    assert tracker.overdue(140.0) == (STUDIO,)
    tracker.observe(lease(version="2"), 141.0)
    assert tracker.overdue(180.9) == ()
    assert tracker.next_deadline == 181.0


def test_nothing_dies_by_itself():
    """An overdue host is alive until a scan removes it."""
    tracker = LeaseTracker()
    tracker.observe(lease(), 0.0)
    assert tracker.hosts.is_alive("studio")
    assert tracker.overdue(1e6) == (STUDIO,)
    tracker.mark_gone(STUDIO)
    assert not tracker.hosts.is_alive("studio")
    assert tracker.overdue(1e6) == ()
    assert tracker.next_deadline == math.inf


def test_a_buried_host_comes_back_with_its_next_renewal_only():
    """The old version of its Lease, listed once more, does not raise the dead."""
    tracker = LeaseTracker()
    tracker.observe(lease(version="1"), 0.0)
    tracker.mark_gone(STUDIO)
    tracker.observe(lease(version="1"), 50.0)
    assert not tracker.hosts.is_alive("studio")
    tracker.observe(lease(version="2"), 60.0)
    assert tracker.hosts.is_alive("studio")
    assert tracker.next_deadline == 100.0


def test_after_an_outage_a_host_gets_a_whole_lease_to_renew():
    """`renewed` counts an unchanged Lease as if it had just changed."""
    tracker = LeaseTracker()
    tracker.observe(lease(), 0.0)
    tracker.observe(lease(), 70.0, renewed=True)
    assert tracker.next_deadline == 110.0


def test_postponing_moves_the_next_look():
    """A Lease that could not be read is looked at again later, and its host stays alive meanwhile."""
    tracker = LeaseTracker()
    tracker.observe(lease(), 0.0)
    tracker.postpone(STUDIO, 45.0)
    assert tracker.overdue(44.0) == ()
    assert tracker.overdue(45.0) == (STUDIO,)


def test_a_deleted_lease_takes_its_host_along_at_once():
    """An agent that stops in good order is not waited for."""
    tracker = LeaseTracker()
    tracker.observe(lease(), 0.0)
    tracker.forget(STUDIO)
    assert tracker.hosts == LiveHosts()


def test_a_recreated_lease_is_a_change():
    """A new object under the same name is news even if its version looks the same."""
    tracker = LeaseTracker()
    tracker.observe(lease(), 0.0)
    again = lease()
    tracker.observe(attrs.evolve(again, metadata=attrs.evolve(again.metadata, uid="l-2")), 30.0)
    assert tracker.next_deadline == 70.0


@pytest.mark.parametrize("seconds", [None, 0])
def test_a_lease_without_a_duration_is_good_for_forty_seconds(seconds):
    """A missing duration must not make a host immortal, nor kill it at once."""
    tracker = LeaseTracker()
    tracker.observe(lease(seconds=seconds), 0.0)
    assert tracker.next_deadline == 40.0


def test_leases_of_others_are_ignored():
    """A Lease without our label, a leader election's for example, is no host; nor is one that loses the label."""
    tracker = LeaseTracker()
    tracker.observe(lease(label=""), 0.0)
    assert tracker.hosts == LiveHosts()
    tracker.observe(lease(version="2"), 0.0)
    tracker.observe(lease(version="3", label=""), 1.0)
    assert tracker.hosts == LiveHosts()


def test_two_leases_of_one_host_add_up():
    """A host lives while any Lease of its does, with all the accelerators that they name."""
    tracker = LeaseTracker()
    tracker.observe(lease(accelerators="metal"), 0.0)
    tracker.observe(lease(name="studio-2", accelerators="cpu"), 0.0)
    assert tracker.hosts == LiveHosts({"studio": frozenset({"metal", "cpu"})})
    tracker.mark_gone(STUDIO)
    assert tracker.hosts == LiveHosts({"studio": frozenset({"cpu"})})


def test_reading_an_unknown_lease_changes_nothing():
    """Burying or postponing a Lease that was deleted in the meantime is harmless."""
    tracker = LeaseTracker()
    tracker.mark_gone(STUDIO)
    tracker.postpone(STUDIO, 10.0)
    tracker.forget(STUDIO)
    assert tracker.overdue(1e9) == ()

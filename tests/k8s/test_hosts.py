"""A host is alive as long as we see its Lease change, whatever the clocks of others say."""

import math

import attrs
import pytest

from controller.objects import lease
from llmkube.k8s.hosts import Hosts, LeaseBook
from llmkube.k8s.resource import Key

STUDIO = Key("llmkube-system", "studio")


def test_hosts_tell_who_serves_what():
    """A host serves the accelerators of its own Lease and no other host's."""
    hosts = Hosts({"studio": frozenset({"metal", "cpu"}), "mini": frozenset({"cpu"})})
    assert hosts.serving("metal") == {"studio"}
    assert hosts.serving("cpu") == {"studio", "mini"}
    assert hosts.serving("cuda") == frozenset()
    assert hosts.alive("mini")
    assert not hosts.alive("pro")


def test_a_lease_is_overdue_when_it_has_not_changed_for_its_duration():
    """Seeing the same version again gives no new life; seeing another one does."""
    book = LeaseBook()
    book.see(lease(version="1", accelerators="metal, cpu"), 100.0)
    assert book.hosts == Hosts({"studio": frozenset({"metal", "cpu"})})
    assert book.next_deadline == 140.0
    book.see(lease(version="1"), 130.0)
    assert book.next_deadline == 140.0
    assert book.overdue(139.9) == ()
    assert book.overdue(140.0) == (STUDIO,)
    book.see(lease(version="2"), 141.0)
    assert book.overdue(180.9) == ()
    assert book.next_deadline == 181.0


def test_nothing_dies_by_itself():
    """An overdue host stays alive until somebody has looked and buries it."""
    book = LeaseBook()
    book.see(lease(), 0.0)
    assert book.hosts.alive("studio")
    assert book.overdue(1e6) == (STUDIO,)
    book.bury(STUDIO)
    assert not book.hosts.alive("studio")
    assert book.overdue(1e6) == ()
    assert book.next_deadline == math.inf


def test_a_buried_host_comes_back_with_its_next_renewal_only():
    """The old version of its Lease, listed once more, does not raise the dead."""
    book = LeaseBook()
    book.see(lease(version="1"), 0.0)
    book.bury(STUDIO)
    book.see(lease(version="1"), 50.0)
    assert not book.hosts.alive("studio")
    book.see(lease(version="2"), 60.0)
    assert book.hosts.alive("studio")
    assert book.next_deadline == 100.0


def test_after_an_outage_a_host_gets_a_whole_lease_to_renew():
    """`renewed` counts an unchanged Lease as if it had just changed."""
    book = LeaseBook()
    book.see(lease(), 0.0)
    book.see(lease(), 70.0, renewed=True)
    assert book.next_deadline == 110.0


def test_postponing_moves_the_next_look():
    """A Lease that could not be read is looked at again later, and its host stays alive meanwhile."""
    book = LeaseBook()
    book.see(lease(), 0.0)
    book.postpone(STUDIO, 45.0)
    assert book.overdue(44.0) == ()
    assert book.overdue(45.0) == (STUDIO,)


def test_a_deleted_lease_takes_its_host_along_at_once():
    """An agent that stops in good order is not waited for."""
    book = LeaseBook()
    book.see(lease(), 0.0)
    book.forget(STUDIO)
    assert book.hosts == Hosts()


def test_a_recreated_lease_is_a_change():
    """A new object under the same name is news even if its version looks the same."""
    book = LeaseBook()
    book.see(lease(), 0.0)
    again = lease()
    book.see(attrs.evolve(again, metadata=attrs.evolve(again.metadata, uid="l-2")), 30.0)
    assert book.next_deadline == 70.0


@pytest.mark.parametrize("seconds", [None, 0])
def test_a_lease_without_a_duration_is_good_for_forty_seconds(seconds):
    """A missing duration must not make a host immortal, nor kill it at once."""
    book = LeaseBook()
    book.see(lease(seconds=seconds), 0.0)
    assert book.next_deadline == 40.0


def test_leases_of_others_are_ignored():
    """A Lease without our label, a leader election's for example, is no host; nor is one that loses the label."""
    book = LeaseBook()
    book.see(lease(label=""), 0.0)
    assert book.hosts == Hosts()
    book.see(lease(version="2"), 0.0)
    book.see(lease(version="3", label=""), 1.0)
    assert book.hosts == Hosts()


def test_two_leases_of_one_host_add_up():
    """A host lives while any Lease of its does, with all the accelerators that they name."""
    book = LeaseBook()
    book.see(lease(accelerators="metal"), 0.0)
    book.see(lease(name="studio-2", accelerators="cpu"), 0.0)
    assert book.hosts == Hosts({"studio": frozenset({"metal", "cpu"})})
    book.bury(STUDIO)
    assert book.hosts == Hosts({"studio": frozenset({"cpu"})})


def test_whoever_looks_at_an_unknown_lease_changes_nothing():
    """Burying or postponing a Lease that was deleted in the meantime is harmless."""
    book = LeaseBook()
    book.bury(STUDIO)
    book.postpone(STUDIO, 10.0)
    book.forget(STUDIO)
    assert book.overdue(1e9) == ()

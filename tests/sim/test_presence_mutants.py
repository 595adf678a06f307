"""Deliberate bugs in presence, claims, wake and addresses: each must fail its timeline, or that proves nothing."""

import pytest
import trio

from llmkube.controller.reconcile import inference_services
from llmkube.k8s import reflector
from llmkube.supervisor import agent
from llmkube.supervisor.cluster import applier, claim_manager, claims, host_lease
from llmkube.supervisor.cluster.applier import Applier, DriftRepair
from llmkube.supervisor.cluster.claim_manager import ClaimLeases, ClaimManager
from llmkube.supervisor.engine import health
from llmkube.supervisor.service.facts import Facts
from llmkube.supervisor.values.host_addresses import HostAddress
from sim import test_api_faults, test_claims, test_limits, test_presence
from sim.mutation import assert_caught, do_nothing, never_yields, rows


def first_address(original):
    return lambda facts, host_address: facts if facts.host_address.address else original(facts, host_address)


def always(value):
    def answer(*args, **kwargs):
        return value

    return answer


def everybody_lives(original):
    class Everybody(frozenset):
        def __contains__(self, host):
            return True

    return lambda host, slots, held, alive: original(host, slots, held, Everybody())


async def denied(*args, **kwargs):
    await trio.lowlevel.checkpoint()
    return False


def speaks_first(original):
    def reports(self, desired):
        return not self.synced or original(self, desired)

    return reports


def deaf_after_loss(original):
    async def acquire(self, service, decision):
        await original(self, service, decision)  # every host believes that it has the claim
        self.index.put(*mine(self, service.key, decision))

    def mine(self, key, decision):
        lease = reflector.Key(self.settings.lease_namespace, claims.claim_name(key.namespace, key.name, decision.slot))
        host = claim_manager.host_id(self.settings.host_name)
        return lease, claims.Claim(key, decision.slot, host, lease, "999999999")

    return acquire


MUTANTS = {
    test_claims.test_two_hosts_share_the_services_and_run_none_twice: {
        "no claim is checked": (ClaimManager, "may_run", always(True))
    },
    test_claims.test_a_race_for_one_slot_has_one_winner_and_no_noise: {
        "the loser of a race does not see it": (ClaimLeases, "acquire", deaf_after_loss(ClaimLeases.acquire))
    },
    test_claims.test_a_dead_host_is_replaced_within_a_minute: {
        "a dead host's claims hold forever": (claims, "decide", everybody_lives(claims.decide))
    },
    test_claims.test_a_partitioned_host_continues_and_yields_on_return: {
        "a returned host does not yield": (ClaimManager, "may_run", never_yields(ClaimManager.may_run))
    },
    test_claims.test_the_host_with_the_file_comes_first_then_the_one_with_most_memory: {
        "no host delays": (claims, "delay_seconds", always(0.0))
    },
    test_claims.test_a_deleted_service_leaves_no_claim: {
        "claims are never given up": (ClaimManager, "release", always(None))
    },
    test_claims.test_two_replicas_run_on_two_hosts: {
        "one slot for any number of replicas": (claim_manager, "slots", always(1)),
        "every replica speaks": (ClaimManager, "reports", always(True)),
    },
    test_claims.test_endpoints_of_a_dead_host_are_withdrawn: {
        "a dead host's endpoints stay": (inference_services, "is_in_service", always(False))
    },
    test_presence.test_a_change_during_a_sleep_is_applied_at_the_wake: {
        "sleep goes unnoticed": (host_lease, "slept_seconds", always(0.0))
    },
    test_api_faults.test_endpoints_withdrawn_during_an_outage_are_published_again_at_once: {
        "nothing is reapplied on return": (Applier, "reapply_all_nowait", always(None))
    },
    test_presence.test_a_new_gateway_moves_the_slice_and_no_engine: {
        "slices stay where they were": (Facts, "with_host_address", first_address(Facts.with_host_address))
    },
    test_presence.test_slices_follow_a_new_address_within_seconds: {
        "engines stay on lost addresses": (HostAddress, "serves", always(True))
    },
    test_presence.test_a_host_without_a_network_for_a_while_unloads_nothing: {
        "no address is as good as another": (host_lease, "keep_last", lambda before, now: now)
    },
    test_presence.test_a_service_that_is_no_longer_served_here_is_withdrawn: {
        "what an earlier agent published stays": (agent, "delete_stale_endpoints", do_nothing)
    },
    test_api_faults.test_a_host_with_an_empty_first_list_keeps_its_claims: {
        "a claim on what no list has named is given up": (ClaimLeases, "is_selected", denied)
    },
    test_limits.test_an_agent_without_descriptors_condemns_no_engine: {
        "an engine is stopped for a lack of its host": (health, "LOCAL_CONNECT_ERRNOS", frozenset())
    },
    test_claims.test_an_agent_that_starts_alone_does_not_overwrite_the_status_of_the_one_that_serves: {
        "an agent reports before it knows who serves": (ClaimManager, "reports", speaks_first(ClaimManager.reports))
    },
    test_claims.test_a_late_write_of_another_host_is_overwritten_at_once: {
        "an overwritten status is not repaired": (DriftRepair, "check_nowait", always(None))
    },
    test_claims.test_two_writers_do_not_overwrite_each_other_forever: {
        "a correction is repeated at once": (applier, "PAUSE_SECONDS", 0.0)
    },
    test_api_faults.test_a_watch_that_denies_every_service_is_checked_with_a_list_first: {
        "a watch is believed whatever it denies": (reflector, "is_mass_deletion", always(False))
    },
    test_api_faults.test_single_deletions_apply_at_once: {
        "every deletion is doubted": (reflector, "is_mass_deletion", always(True))
    },
    test_api_faults.test_deleting_everything_is_believed_after_the_second_list: {
        "the first list is believed": (reflector.Cache, "is_suspect", always(False))
    },
}


@pytest.mark.soak
@pytest.mark.parametrize("row", rows(MUTANTS))
def test_a_mutant_is_caught(row, monkeypatch):
    """A program with this bug fails its timeline."""
    assert_caught(monkeypatch, row)

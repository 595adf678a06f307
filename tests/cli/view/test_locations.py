import datetime

import pytest

from llmkube.cli.view.locations import Engine, Host, engines_in, live_hosts, reporting_hosts, slice_selector
from llmkube.k8s.builtins import EndpointSlice, Lease
from llmkube.k8s.codec import decode
from llmkube.k8s.crd.inferenceservice import InferenceService

NOW = datetime.datetime(2026, 1, 1, 0, 10, tzinfo=datetime.UTC)


def piece(host, *endpoints, port=51234):
    return decode(
        EndpointSlice,
        {
            "metadata": {"name": f"chat.{host}", "labels": {"inference.llmkube.dev/host": host}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address, ready in endpoints],
            "ports": [{"name": "http", "port": port}] if port else [],
        },
    )


def lease(name, renewed, accelerators="cpu"):
    return decode(
        Lease,
        {
            "metadata": {
                "name": name,
                "labels": {"inference.llmkube.dev/host": name},
                "annotations": {"inference.llmkube.dev/accelerators": accelerators},
            },
            "spec": {"leaseDurationSeconds": 40, "renewTime": renewed},
        },
    )


def test_engines_that_answer_come_first():
    """All addresses are listed, ready ones first; a slice without a port lists none."""
    found = engines_in([piece("a", ("10.0.0.1", False)), piece("b", ("10.0.0.2", True)), piece("c", port=0)])
    assert found == (Engine("b", "10.0.0.2", 51234, True), Engine("a", "10.0.0.1", 51234, False))
    assert engines_in([piece("a", ("10.0.0.1", None))])[0].ready  # as every consumer of slices reads it


@pytest.mark.parametrize(
    ("renewed", "alive"),
    [
        ("2026-01-01T00:09:50.000000Z", True),
        ("2026-01-01T00:11:00.000000Z", True),  # the other clock is ahead
        ("2026-01-01T00:08:30.000000Z", True),  # or behind
        ("2026-01-01T00:08:19.000000Z", False),
        ("", False),
        ("yesterday", False),
        ("2026-01-01T00:09:50", False),
    ],
)
def test_a_host_lives_as_long_as_its_lease(renewed, alive):
    """A long-expired Lease is ignored, with an allowance for clock skew."""
    expected = (Host("mac", frozenset({"cpu", "metal"})),) if alive else ()
    assert live_hosts([lease("mac", renewed, "cpu,metal")], NOW) == expected


def test_leases_of_others_are_no_hosts():
    """A Lease without the host label, such as a controller's, is skipped."""
    foreign = decode(Lease, {"metadata": {"name": "leader"}, "spec": {"renewTime": "2026-01-01T00:09:59Z"}})
    assert live_hosts([foreign], NOW) == ()


def test_reporters_are_read_off_managed_fields():
    """Each agent that wrote the status is listed once; controllers and users are not."""
    managers = ("llmkube-agent-mac", "llmkube-agent-mac", "llmkube-agent-box", "llmkube-controller", "kubectl")
    data = {
        "metadata": {"name": "a", "managedFields": [{"manager": each} for each in managers]},
        "spec": {"modelRef": "a"},
    }
    assert reporting_hosts(decode(InferenceService, data)) == ("box", "mac")


def test_the_selector_follows_the_services_name():
    """A service whose name is no valid Service name is found under its derived name."""
    assert slice_selector("chat") == "kubernetes.io/service-name=chat"
    assert slice_selector("4.chat").startswith("kubernetes.io/service-name=s-4-chat-")

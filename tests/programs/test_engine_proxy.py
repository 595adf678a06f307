"""The networks that a running proxy admits: those of its file, and its own host."""

import attrs
import pytest
import trio

from llmkube.programs import engine_proxy
from llmkube.programs.engine_proxy import RELOAD_SECONDS, AdmittedPeers
from llmkube.supervisor.values.admitted_networks import AdmittedNetworks
from llmkube.supervisor.values.proxy_config import ProxyConfig

GIVEN, NODES = "10.9.0.0/16", AdmittedNetworks(nodes=("10.0.0.1/32", "10.244.0.0/24"))
STRANGER = "192.0.2.9"


@pytest.fixture
def own(monkeypatch):
    """Set the addresses of this host."""
    found = {"192.0.2.2"}
    monkeypatch.setattr(engine_proxy, "interface_addresses", lambda: [*found, "fe80::1%eth0", "127.0.0.1"])
    return found


@pytest.fixture
def config(tmp_path):
    return ProxyConfig(("192.0.2.1", 1), ("127.0.0.1", 2), "key", (GIVEN,), networks=str(tmp_path / "networks"))


def admitted(admission, *peers):
    admission.reload()
    return [admission.admits(each) for each in peers]


def test_the_host_itself_is_never_locked_out(config, own):
    """Over loopback, from the address that the engine is published at, and from any address that the host has now."""
    admission = AdmittedPeers(config)
    assert admitted(admission, "127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "192.0.2.2") == [True] * 5
    assert admitted(admission, STRANGER, "192.0.2.3", "fe80::1%eth0", "") == [False] * 4
    own.clear()
    own.add("192.0.2.3")
    assert admitted(admission, "192.0.2.2", "192.0.2.3") == [False, True]


@pytest.mark.parametrize("changes", [{"networks": ""}, {"networks": "", "allowed": (), "keys": ("of-a-client",)}])
def test_the_host_is_admitted_without_a_cluster_and_with_keys(config, own, changes):
    """As for `llmkube up`, whose gateway connects from this host, and for a service with a Secret."""
    admission = AdmittedPeers(attrs.evolve(config, **changes))
    assert admitted(admission, "127.0.0.1", "192.0.2.1", "192.0.2.2") == [False] * 3
    assert admitted(admission, "10.9.0.1") == ["allowed" not in changes]


async def test_a_changed_file_applies_soon(config, own, autojump_clock, monkeypatch, tmp_path):
    """Nodes come and go; a missing or broken file changes nothing, and neither does a failure to list addresses."""

    async def at_once(reload):  # no real thread under a virtual clock
        await trio.lowlevel.checkpoint()
        reload()

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    file, admission = tmp_path / "networks", AdmittedPeers(config)
    pods = ("10.244.0.7", "10.0.0.1", "10.9.0.1", STRANGER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.run)
        for text, expected in (
            (NODES.dump(), [True, True, True, False]),
            ("{", [True, True, True, False]),
            (None, [True, True, True, False]),
            (AdmittedNetworks(nodes=("10.0.0.1/32",)).dump(), [False, True, True, False]),
        ):
            file.write_text(text) if text is not None else file.unlink()
            await trio.sleep(RELOAD_SECONDS + 0.1)
            assert [admission.admits(each) for each in pods] == expected
        nursery.cancel_scope.cancel()


def test_the_networks_stay_when_addresses_cannot_be_listed(config, own, monkeypatch):
    """No descriptor is left."""
    admission = AdmittedPeers(config)
    admission.reload()

    def full():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(engine_proxy, "interface_addresses", full)
    assert admitted(admission, "192.0.2.2", STRANGER) == [True, False]

import re
import socket

import pytest

from llmkube.base.errors import UserError
from llmkube.programs.host_name import (
    check_own_address,
    default_host_name,
    persistent_host_name,
    source_address_for,
    stored_host_name,
)


def test_the_name_is_the_short_host_name_and_four_digits():
    """In lower case and without the domain; four hex digits of the machine id distinguish hosts of one name."""
    name = default_host_name("Anns-Mac.local", b"one")
    assert re.fullmatch(r"anns-mac-[0-9a-f]{4}", name)
    assert name != default_host_name("Anns-Mac.local", b"two")


@pytest.mark.parametrize("host", ["Ann's Mac", "", "mac_mini", "x" * 100, "-dash-"])
def test_any_host_name_makes_a_dns_label(host):
    """The name is always valid as a Lease's name and as a label's value."""
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", default_host_name(host, b"one"))


def test_the_name_is_the_same_at_every_start():
    """A restart does not make a new host."""
    assert default_host_name() == default_host_name()


def test_another_network_does_not_rename_a_host(tmp_path, monkeypatch):
    """A host keeps its name when DHCP has given the machine another one before an agent starts."""
    folder = tmp_path / "new" / "llmkube"
    monkeypatch.setattr(socket, "gethostname", lambda: "Anns-Mac.local")
    first = persistent_host_name(folder)
    monkeypatch.setattr(socket, "gethostname", lambda: "dhcp-17.office.example")
    assert first.startswith("anns-mac-")
    assert (persistent_host_name(folder), stored_host_name(folder)) == (first, first)
    assert stored_host_name(tmp_path).startswith("dhcp-17-")
    assert not (tmp_path / "host-name").exists()


@pytest.mark.parametrize("content", ["", "\n", "Not A Label", "gr\u00f6\u00dfe"])
def test_an_invalid_stored_name_is_replaced(tmp_path, content):
    """A file that was emptied or filled with something else has no name."""
    (tmp_path / "host-name").write_text(content, "utf-8")
    assert persistent_host_name(tmp_path) == default_host_name()
    assert (tmp_path / "host-name").read_text() == f"{default_host_name()}\n"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mac.local", "is not an IP address"),
        ("300.1.1.1", "is not an IP address"),
        ("127.0.0.1", "127.0.0.1 is not routable"),
        ("::1", "::1 is not routable"),
        ("0.0.0.0", "0.0.0.0 is not routable"),
        ("169.254.1.1", "169.254.1.1 is not routable"),
        ("192.0.2.1", "engines cannot listen on 192.0.2.1"),
    ],
)
def test_addresses_that_cannot_work_are_refused(address, message):
    """An address that is not ours, or that the API server would refuse in a slice, is an error at the start."""
    with pytest.raises(UserError, match=f"--host-ip: .*{re.escape(message)}"):
        check_own_address(address)


def test_the_loopback_address_is_never_advertised():
    """An API server on the same machine, or an unknown one, gives no address to advertise."""
    assert source_address_for("127.0.0.1", 6443) is None
    assert source_address_for("no-such-host.invalid", 6443) is None

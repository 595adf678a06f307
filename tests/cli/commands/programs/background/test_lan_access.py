"""macOS local network access, assessed by the job's own connection attempts."""

import errno

import pytest
import trio

from llmkube.cli.commands.programs.background.lan_access import (
    assess,
    dial_tcp,
    lan_access_path,
    lan_peers,
    record_lan_access,
)

ARP = """\
? (192.168.1.1) at a4:5e:60:11:22:33 on en0 ifscope [ethernet]
? (192.168.1.20) at 3c:22:fb:11:22:33 on en0 ifscope [ethernet]
? (192.168.1.77) at (incomplete) on en0 ifscope [ethernet]
? (224.0.0.251) at 1:0:5e:0:0:fb on en0 ifscope permanent [ethernet]
"""


def test_the_api_server_is_tried_first_and_the_router_never():
    """The router proves nothing, nor does a neighbour that never answered or is on another network."""
    assert lan_peers(("192.168.1.10", 6443), ARP, "192.168.1.1") == (("192.168.1.10", 6443), ("192.168.1.20", 9))
    assert lan_peers(("api.example.com", 443), "", "") == ()
    assert lan_peers(("127.0.0.1", 6443), "", "") == ()


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ([0], "reached"),
        ([errno.ECONNREFUSED], "reached"),
        ([errno.EHOSTUNREACH, errno.ECONNREFUSED], "reached"),
        ([errno.EHOSTUNREACH, errno.EHOSTUNREACH], "refused"),
        ([errno.EHOSTUNREACH], "unknown"),
        ([errno.ETIMEDOUT, errno.EHOSTUNREACH], "unknown"),
        ([], "unknown"),
    ],
)
def test_one_connection_suffices_and_one_failure_proves_nothing(errors, verdict):
    """A sleeping machine gives the same errno as a refusal by macOS."""
    assert assess(errors) == verdict


async def test_result_is_recorded_for_commands(tmp_path):
    """`llmkube agent install` and `status` read it."""

    async def dial(peer):
        await trio.lowlevel.checkpoint()
        return errno.EHOSTUNREACH

    await record_lan_access(tmp_path, [("192.168.1.10", 6443), ("192.168.1.20", 9)], dial)
    assert lan_access_path(tmp_path).read_text() == "refused\n"


async def test_a_port_that_refuses_is_reached():
    """On a real socket: the machine answers with a refusal."""
    assert assess([await dial_tcp(("127.0.0.1", 1))]) == "reached"

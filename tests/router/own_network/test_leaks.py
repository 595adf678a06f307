"""The policy's promise on the wire: canary providers in a network namespace of their own get no byte that is forbidden.

The router dials them over two wires, of local and of other backends. The canaries write down each byte by the request
that it belongs to, and half of their answers are failures, redirects or nothing, so that every fallback is walked. The
kernel counts the bytes of each wire by itself.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lengths import WIRE_LEAKS

TESTS = Path(__file__).resolve().parents[2]
NAMESPACES = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")))
NEEDED = "command -v ip && command -v nsenter && unshare --net ip link add near type veth peer name near0"

pytestmark = pytest.mark.e2e


def played(count, seed=22, classes="any", bug=""):
    """What became of drawn routers, with two requests each."""
    if subprocess.run([*NAMESPACES, "sh", "-c", NEEDED], capture_output=True, check=False).returncode:
        pytest.skip("this test needs network namespaces: Linux, unshare and nsenter, ip, and root or user namespaces")
    command = [*NAMESPACES, sys.executable, "-m", "router.own_network.session", str(count), str(seed), classes, bug]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(TESTS)}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def test_no_byte_reaches_a_canary_that_is_closed_to_its_request():
    """Each byte belongs to a request, and no request reached what the oracle forbids; most reached something."""
    found = played(WIRE_LEAKS)
    assert (found["leaks"], found["stray"]) == (0, {}), found["examples"]
    assert found["asked"] == 2 * WIRE_LEAKS
    assert found["reached"] > found["asked"] * 0.2
    assert min(found["received"]["near0"], found["received"]["far0"]) > 10_000


def test_of_sensitive_requests_alone_the_far_wire_carries_nothing():
    """Not a packet: the kernel has counted 0 bytes there, and many on the other wire."""
    found = played(WIRE_LEAKS // 4, seed=7, classes="sensitive")
    assert found["received"]["far0"] == 0
    assert found["received"]["near0"] > 1000
    assert (found["leaks"], found["stray"]) == (0, {})


CAUGHT = {
    "redirects are followed": 200,
    "every backend is local": 200,
    "the first class counts": 200,
    "no default class": 200,
    "no region": 200,
    "no lists of teams": 200,
    "a fallback is any backend": 200,
    "a refusal goes to the default": 200,
    "copies go to all of a rule": 1500,
}
"""Deliberate bugs, and how many routers show one."""


@pytest.mark.soak
@pytest.mark.parametrize("bug", CAUGHT)
def test_a_router_that_leaks_is_seen_on_the_wire(bug):
    """Each deliberate bug has bytes at a canary that was closed."""
    assert played(CAUGHT[bug], bug=bug)["leaks"] > 0

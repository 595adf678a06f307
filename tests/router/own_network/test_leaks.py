"""The policy's promise on the wire: canary providers in their own network namespace get no forbidden byte.

The router connects over two wires, to local and to other backends. The canaries record each byte by request, and half
of their answers are failures, redirects or nothing, so that every fallback is used. The kernel counts the bytes of each
wire independently.
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
    """Return the result of drawn routers, with two requests each."""
    if subprocess.run([*NAMESPACES, "sh", "-c", NEEDED], capture_output=True, check=False).returncode:
        pytest.skip("this test needs network namespaces: Linux, unshare and nsenter, ip, and root or user namespaces")
    command = [*NAMESPACES, sys.executable, "-m", "router.own_network.session", str(count), str(seed), classes, bug]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(TESTS)}, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def test_no_byte_reaches_a_canary_that_is_closed_to_its_request():
    """Each byte is one of a request whose backend the oracle permits, or of a health check without client data."""
    found = played(WIRE_LEAKS)
    assert (found["leaks"], found["stray"]) == (0, {}), found["examples"]
    assert found["asked"] == 2 * WIRE_LEAKS
    assert found["reached"] > found["asked"] * 0.2
    assert found["checks"] > 0
    assert min(found["received"]["near0"], found["received"]["far0"]) > 10_000


def test_of_sensitive_requests_alone_the_far_wire_carries_nothing():
    """The kernel has counted 0 bytes there, and many on the other wire."""
    found = played(WIRE_LEAKS // 4, seed=7, classes="sensitive")
    assert found["received"]["far0"] == 0
    assert found["received"]["near0"] > 1000
    assert (found["leaks"], found["stray"]) == (0, {})


CAUGHT = {
    "redirects are followed": 200,
    "health checks carry data": 100,
    "every backend is local": 200,
    "the first class counts": 200,
    "no default class": 200,
    "no region": 200,
    "no lists of teams": 200,
    "a fallback is any backend": 200,
    "a refusal goes to the default": 200,
    "copies go to all of a rule": 1500,
}
"""Deliberate bugs, with the number of routers that reveal each."""


@pytest.mark.soak
@pytest.mark.parametrize("bug", CAUGHT)
def test_a_router_that_leaks_is_seen_on_the_wire(bug):
    """Each deliberate bug sends bytes to a canary that is closed."""
    assert played(CAUGHT[bug], bug=bug)["leaks"] > 0

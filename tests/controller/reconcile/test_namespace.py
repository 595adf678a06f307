"""The namespace of the Leases is created; a controller without the right logs that once."""

import random

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from controller.cluster import open_cluster
from llmkube.controller.reconcile.namespace import POLL_SECONDS, run_namespace_keeper
from llmkube.k8s.builtins import Lease, Namespace
from llmkube.k8s.errors import ForbiddenError
from llmkube.k8s.resource import Key


async def test_the_namespace_of_the_leases_is_created(autojump_clock):
    """On a cluster without it, the namespace is created soon, even if it is deleted later or the server was away."""
    async with open_cluster(lease_namespace="elsewhere", identity="one") as cluster:
        await trio.sleep(1)
        key = Key("", "elsewhere")
        assert await cluster.client.get(Namespace, key)
        await cluster.client.delete(Namespace, key)
        await cluster.faults.cut()
        await trio.sleep(POLL_SECONDS + 10)
        cluster.faults.down = False
        await trio.sleep(120)
        assert await cluster.client.get(Namespace, key)
        await cluster.client.get(Lease, Key("elsewhere", "llmkube-controller"))


@pytest.mark.parametrize(("confined", "level"), [(False, "warning"), (True, "info")])
async def test_a_controller_that_may_not_create_it_logs_once(autojump_clock, confined, level):
    """Forbidden is logged once in a day and ends nothing; if a role can never grant it, it is no warning."""
    calls = []

    class Refusing:
        async def get(self, kind, key):
            await trio.lowlevel.checkpoint()
            calls.append(key)
            raise ForbiddenError("namespaces is forbidden", code=403)

    structlog.reset_defaults()  # a program that ran in this process before may have asked for warnings alone
    with capture_logs() as logs, trio.move_on_after(86_400):
        await run_namespace_keeper(Refusing(), "llmkube-system", random.Random(0), confined=confined)
    assert [each["log_level"] for each in logs] == [level]
    assert "forbidden" in logs[0]["error"]
    assert 140 < len(calls) <= 145

"""The controller calls what it declares, and declares what it calls."""

import trio

from controller.cluster import SETTLED, open_cluster
from k8s.api_calls import undeclared, unused
from llmkube.controller.rights import PROGRAM
from llmkube.k8s.builtins import Namespace
from llmkube.k8s.resource import Key


async def test_what_the_controller_does_is_what_it_declares(autojump_clock):
    """A day with services, a host that dies, a lost network and a lost namespace uses every right, and no other."""
    async with open_cluster(identity="one") as cluster:
        await cluster.bring_up()
        await trio.sleep(60)  # the host falls silent: a Lease is read once more
        await cluster.faults.cut()
        await trio.sleep(60)
        cluster.faults.down = False
        await cluster.renew()
        await cluster.report_service("Loaded", "Loaded")
        await cluster.client.delete(Namespace, Key("", "llmkube-system"))
        await trio.sleep(1200)
        for _ in range(2):  # the same news again raises a count
            await cluster.renew()
            await cluster.publish(ready=False)
            await trio.sleep(SETTLED)
            await cluster.publish()
            await trio.sleep(SETTLED)
        calls = set(cluster.faults.calls)
        assert undeclared(calls, PROGRAM) == set()
        assert unused(calls, PROGRAM) == set()

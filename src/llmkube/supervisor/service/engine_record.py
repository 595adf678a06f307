"""Where a new engine listens, and where its clients reach it: itself, or through a proxy."""

import ipaddress

from llmkube.runtimes.plan import LaunchPlan
from llmkube.runtimes.process.host_runtimes import HOST_RUNTIMES
from llmkube.supervisor.engine.key_file import new_key
from llmkube.supervisor.nouns.host_addresses import LOOPBACK
from llmkube.supervisor.nouns.journal import EngineRecord
from llmkube.supervisor.service.context import ServiceContext


def new_record(context: ServiceContext, plan: LaunchPlan) -> EngineRecord:
    """Choose ports and a key for an engine that is about to start.

    One that cannot ask for keys listens on the loopback address, and its clients reach a proxy that asks.

    Raises:
        WorldError: This host does not have the address.
    """
    settings, engines = context.settings, context.ports.engines
    cookie, host = f"{context.ports.rng.getrandbits(64):016x}", context.status_manager.reach.value.bind
    clients_have_keys, asks = bool(plan.keys_digest), HOST_RUNTIMES[plan.runtime].takes_keys
    if asks and settings.insecure_lan and not clients_have_keys:
        return EngineRecord(cookie, host, engines.free_port(host))
    if asks and (clients_have_keys or not settings.publishes):
        return EngineRecord(cookie, host, engines.free_port(host), api_key=new_key())
    inside = LOOPBACK[ipaddress.ip_address(host).version]
    return EngineRecord(
        cookie,
        inside,
        engines.free_port(inside),
        api_key=new_key(),
        public_host=host,
        public_port=engines.free_port(host),
    )

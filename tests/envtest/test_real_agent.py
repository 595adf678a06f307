"""Agent and controller as processes on a real control plane, with tokens that expire and just their own roles."""

import datetime
import json
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import yaml

from e2e.addresses import own_address
from e2e.separate_programs import Cluster, chat, eventually, logs, told_by
from e2e.up_process import ANSWER, engines_in, open_program
from envtest.plane import open_control_plane
from llmkube.cli.commands.tools.files import Manifest, demo_manifests
from llmkube.cli.commands.tools.server_side_apply import Applier
from llmkube.controller import rights as controller_rights
from llmkube.k8s.auth.load import load_config
from llmkube.k8s.builtins import EndpointSlice, Namespace, Service, ServiceAccount
from llmkube.k8s.client import open_client
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.errors import NotFoundError
from llmkube.k8s.rbac import rbac_manifests
from llmkube.k8s.resource import Key
from llmkube.supervisor import rights as agent_rights
from waiting import until

pytestmark = [pytest.mark.envtest, pytest.mark.e2e]

SYSTEM = "llmkube-system"
TOKEN_SECONDS = 40.0
"""Tokens live shorter than the test: only a program that reads its token file again gets through it."""

TEST_SECONDS = 300.0
SECOND = "second"


async def account_kubeconfig(plane, client, name, folder):
    """A kubeconfig whose token file holds a token of a ServiceAccount that soon expires; return it and a renewer."""
    account = await client.get(ServiceAccount, Key(SYSTEM, name))
    token_file = folder / f"{name}.token"

    def renew():
        now = datetime.datetime.now(datetime.UTC)
        token = plane.signer.token(SYSTEM, name, account.metadata.uid, now=now, lifetime_seconds=TOKEN_SECONDS)
        fresh = token_file.with_suffix(".new")
        fresh.write_text(token)
        fresh.rename(token_file)

    renew()
    path = plane.write_token_kubeconfig(folder / f"{name}.kubeconfig", "")
    document = json.loads(path.read_text())
    document["users"][0]["user"] = {"tokenFile": str(token_file)}
    path.write_text(json.dumps(document))
    return path, renew


async def renew_for_ever(*renewers):
    while True:
        await trio.sleep(TOKEN_SECONDS / 3)
        for renew in renewers:
            renew()


@asynccontextmanager
async def open_real_cluster(assets: Path, folder: Path):
    """A control plane with our kinds, the two programs' accounts, and the controller running under its own."""
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(open_control_plane(assets, folder / "plane", controllers=True))
        client = await stack.enter_async_context(open_client(load_config(plane.kubeconfig)))
        manifests = [
            *all_crds(),
            *rbac_manifests(agent_rights.PROGRAM, system_namespace=SYSTEM),
            *rbac_manifests(controller_rights.PROGRAM, system_namespace=SYSTEM),
        ]
        # Through text, as `llmkube crds | kubectl apply -f -` would.
        bodies = yaml.safe_load_all(yaml.safe_dump_all(manifests))
        applied = await Applier(client).apply_all([Manifest("test", body) for body in bodies], lambda _: None)
        assert not any(each.error for each in applied), applied
        await client.create(Namespace(metadata=ObjectMeta(name=SECOND)))
        await eventually(lambda: client.list(InferenceService), lambda _: True)
        agent_config, renew_agent = await account_kubeconfig(plane, client, "llmkube-agent", folder)
        controller_config, renew_controller = await account_kubeconfig(plane, client, "llmkube-controller", folder)
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        nursery.start_soon(renew_for_ever, renew_agent, renew_controller)
        state = folder / "controller"
        state.mkdir()
        args = ("controller", "--accelerator", "cpu", "--state-dir", str(state))
        controller = await stack.enter_async_context(open_program(state, *args, kubeconfig=controller_config))
        yield plane, Cluster(folder, agent_config, client, None, plane.server), controller


async def apply_in(cluster, namespace):
    bodies = [{**one.body, "metadata": {**one.body["metadata"], "namespace": namespace}} for one in demo_manifests()]
    applied = await Applier(cluster.client).apply_all([Manifest("test", body) for body in bodies], lambda _: None)
    assert not any(each.error for each in applied), applied


async def is_gone(client, kind, key):
    try:
        await client.get(kind, key)
    except NotFoundError:
        return True
    return False


async def test_a_whole_life_on_a_real_cluster(assets, tmp_path):
    """Create, serve, edit, crash, outage, restart and delete in two namespaces, with expiring tokens and RBAC on."""
    address = own_address()
    with trio.fail_after(TEST_SECONDS):
        async with open_real_cluster(assets, tmp_path) as (plane, cluster, controller):
            client, second = cluster.client, Key(SECOND, "demo")
            async with cluster.open_agent(address) as agent:
                await apply_in(cluster, "default")
                await apply_in(cluster, SECOND)
                await cluster.wait_ready()
                await eventually(lambda: client.get(InferenceService, second), lambda one: one.status.phase == "Ready")
                ready, host, port = await cluster.slice()
                assert (ready, host) == (True, address)
                assert await chat(f"http://{address}:{port}") == ANSWER
                service = await client.get(Service, Key("default", "demo"))
                # From here on: a server that has just started, or just got roles, refuses what it will soon allow.
                told = [len(program.err) for program in (agent, controller)]

                # an edit replaces one engine, and only that one
                await cluster.apply_demo(contextSize=256)
                ready, _, port = await eventually(cluster.slice, lambda told: told[0] and told[2] != port)
                assert len(logs(agent, "started inference service")) == 3

                # a crash: not ready, then ready with another port, behind the same ClusterIP
                async with cluster.open_slices() as seen:
                    (engine,) = [one for one in engines_in(tmp_path / "agent") if str(port) in one.cmdline()]
                    engine.kill()
                    await until(lambda: [told[0] for told in seen] == [False, True])
                port = seen[-1][2]
                assert (await client.get(Service, service.key)).spec.cluster_ip == service.spec.cluster_ip

                for program, start in zip((agent, controller), told, strict=True):
                    assert "forbidden" not in program.err[start:].lower()

                # the API server is killed; an engine that dies meanwhile is replaced, and told of afterwards
                await plane.api_server.kill()
                (engine,) = [one for one in engines_in(tmp_path / "agent") if str(port) in one.cmdline()]
                engine.kill()
                await until(lambda: len(logs(agent, "started inference service")) == 5)
                await plane.start_api_server()
                ready, _, port = await eventually(cluster.slice, lambda told: told[0] and told[2] != port)
                assert await chat(f"http://{address}:{port}") == ANSWER
                await cluster.wait_ready()

                # longer than any token lives
                await trio.sleep(TOKEN_SECONDS)
                await cluster.apply_demo(contextSize=384)
                await eventually(cluster.slice, lambda told: told[0] and told[2] != port)
                agent.process.send_signal(signal.SIGTERM)
                assert await agent.process.wait() == 0
                assert not engines_in(tmp_path)
                assert (await cluster.slice())[0] is False
            async with cluster.open_agent(address) as successor:
                await eventually(cluster.slice, lambda told: told[0])
                await client.delete(InferenceService, Key("default", "demo"))
                await until(lambda: len(engines_in(tmp_path / "agent")) == 1)
                await eventually(lambda: is_gone(client, Service, service.key), bool)
                await eventually(
                    lambda: client.list(EndpointSlice, namespace=SECOND),
                    lambda pieces: [told_by(one)[0] for one in pieces.items] == [True],
                )
            assert "forbidden" not in successor.err.lower()

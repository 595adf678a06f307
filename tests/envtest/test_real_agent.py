"""Agent and controller as processes on a real control plane, with tokens that expire and just their own roles."""

import base64
import datetime
import hashlib
import json
import signal
import stat
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import psutil
import pytest
import trio
import yaml

from e2e.addresses import own_address
from e2e.separate_programs import Cluster, chat, eventually, logs, told_by
from e2e.test_files import apply, everything, fetched
from e2e.up_process import ANSWER, command_line, engines_in, open_program, run_program
from envtest.plane import open_control_plane
from llmkube.cli.commands.tools.files import demo_manifests
from llmkube.cli.commands.tools.rbac import agent_manifests
from llmkube.controller import rights as controller_rights
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import EndpointSlice, Lease, Namespace, Secret, Service, ServiceAccount
from llmkube.k8s.client import open_client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.definitions import all_crds
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import ObjectMeta
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.rbac import rbac_manifests
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import CLAIM_LABEL
from llmkube.programs.server_side_apply import Applier, Manifest
from llmkube.supervisor import rights as agent_rights
from llmkube.supervisor.host_policies import host_policies
from llmkube.supervisor.values.join_record import token_paths
from security.test_canaries import objects, words_of
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
async def open_real_cluster(assets: Path, folder: Path, agents, accounts=("llmkube-agent",)):
    """A control plane with our kinds, the programs' accounts, and the controller running under its own.

    The first of the agents' accounts is that of the cluster's agent; the kubeconfigs of the others are next to it.
    """
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(open_control_plane(assets, folder / "plane", controllers=True))
        client = await stack.enter_async_context(open_client(load_config(plane.kubeconfig)))
        manifests = [
            *all_crds(),
            *agents,
            *rbac_manifests(controller_rights.PROGRAM, system_namespace=SYSTEM),
        ]
        # Through text, as `llmkube crds | kubectl apply -f -` would.
        bodies = yaml.safe_load_all(yaml.safe_dump_all(manifests))
        applied = await Applier(client).apply_all([Manifest("test", body) for body in bodies], lambda _: None)
        assert not any(each.error for each in applied), applied
        await client.create(Namespace(metadata=ObjectMeta(name=SECOND)))
        await eventually(lambda: client.list(InferenceService), lambda _: True)
        configs = [await account_kubeconfig(plane, client, name, folder) for name in accounts]
        controller_config, renew_controller = await account_kubeconfig(plane, client, "llmkube-controller", folder)
        nursery = await stack.enter_async_context(trio.open_nursery())
        stack.callback(nursery.cancel_scope.cancel)
        nursery.start_soon(renew_for_ever, *(renew for _, renew in configs), renew_controller)
        state = folder / "controller"
        state.mkdir()
        args = ("controller", "--accelerator", "cpu", "--state-dir", str(state))
        controller = await stack.enter_async_context(open_program(state, *args, kubeconfig=controller_config))
        yield (
            plane,
            Cluster(folder, configs[0][0] if configs else plane.kubeconfig, client, None, plane.server, controller),
            controller,
        )


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
        shared = rbac_manifests(agent_rights.PROGRAM, system_namespace=SYSTEM)
        async with open_real_cluster(assets, tmp_path, shared) as (plane, cluster, controller):
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
                offsets = [len(program.err) for program in (agent, controller)]

                # an edit replaces one engine, and only that one
                await cluster.apply_demo(contextSize=256)
                ready, _, port = await eventually(cluster.slice, lambda seen: seen[0] and seen[2] != port)
                assert len(logs(agent, "started inference service")) == 3

                # a crash: not ready, then ready with another port, behind the same ClusterIP
                async with cluster.open_slices() as seen:
                    (engine,) = [one for one in engines_in(tmp_path / "agent") if "256" in command_line(one)]
                    engine.kill()
                    await until(lambda: [one[0] for one in seen] == [False, True])
                port = seen[-1][2]
                assert (await client.get(Service, service.key)).spec.cluster_ip == service.spec.cluster_ip

                for program, start in zip((agent, controller), offsets, strict=True):
                    assert "forbidden" not in program.err[start:].lower()

                # the API server is killed; an engine that dies meanwhile is replaced, and reported afterwards
                await plane.api_server.kill()
                (engine,) = [one for one in engines_in(tmp_path / "agent") if "256" in command_line(one)]
                engine.kill()
                await until(lambda: len(logs(agent, "started inference service")) == 5)
                await plane.start_api_server()
                ready, _, port = await eventually(cluster.slice, lambda seen: seen[0] and seen[2] != port)
                assert await chat(f"http://{address}:{port}") == ANSWER
                await cluster.wait_ready()

                # longer than any token lives
                await trio.sleep(TOKEN_SECONDS)
                await cluster.apply_demo(contextSize=384)
                await eventually(cluster.slice, lambda seen: seen[0] and seen[2] != port)
                agent.process.send_signal(signal.SIGTERM)
                assert await agent.process.wait() == 0
                assert not engines_in(tmp_path)
                assert (await cluster.slice())[0] is False
            async with cluster.open_agent(address) as successor:
                await eventually(cluster.slice, lambda seen: seen[0])
                await client.delete(InferenceService, Key("default", "demo"))
                await until(lambda: len(engines_in(tmp_path / "agent")) == 1)
                await eventually(lambda: is_gone(client, Service, service.key), bool)
                await eventually(
                    lambda: client.list(EndpointSlice, namespace=SECOND),
                    lambda pieces: [told_by(one)[0] for one in pieces.items] == [True],
                )
            assert "forbidden" not in successor.err.lower()


async def test_s2_hosts_with_an_identity_each_serve_and_take_over(assets, tmp_path):
    """S2: confined to its own, a host serves and adopts, another takes over from it, and its orphaned claim goes."""
    with trio.fail_after(TEST_SECONDS):
        await serve_and_take_over(assets, tmp_path)


async def serve_and_take_over(assets, tmp_path):
    address = own_address()
    networks = (f"{address}/32",)
    hosts = [agent_manifests(SYSTEM, "default", host, networks, ()) for host in ("box", "mini")]
    agents = [*(one for manifests in hosts for one in manifests), *host_policies(SYSTEM)]
    accounts = ("llmkube-agent-box", "llmkube-agent-mini")
    here = ("--namespace", "default")
    async with AsyncExitStack() as stack:
        _, box, _ = await stack.enter_async_context(open_real_cluster(assets, tmp_path, agents, accounts))
        client, mini = box.client, attrs.evolve(box, kubeconfig=tmp_path / "llmkube-agent-mini.kubeconfig")

        async def holders() -> list[str | None]:
            claims = await client.list(Lease, namespace=SYSTEM, label_selector=CLAIM_LABEL)
            return [one.spec.holder_identity for one in claims.items]

        async with box.open_agent(address, *here) as first:
            await box.apply_demo()
            await box.wait_ready()
            await eventually(holders, lambda names: names == ["box"])
            _, host, port = await box.slice()
            assert await chat(f"http://{host}:{port}") == ANSWER
            first.process.kill()
            await first.process.wait()
            # its engine is adopted by the next agent of this host
            async with box.open_agent(address, *here) as second:
                await until(lambda: bool(logs(second, "adopted inference service")))
                (engine,) = engines_in(tmp_path / "agent")
                async with mini.open_agent(address, *here, "--host-name", "mini", folder="mini") as other:
                    second.process.kill()
                    await second.process.wait()
                    engine.kill()
                    await eventually(holders, lambda names: names == ["mini"])
                    key = Key("default", "demo.mini")
                    _, _, port = await eventually(lambda: _slice(client, key), lambda seen: seen[0])
                    assert await chat(f"http://{address}:{port}") == ANSWER
                    await box.wait_ready()
                    # killed, and its service deleted: the claim of a dead host is left
                    other.process.kill()
                    await other.process.wait()
                    for one in engines_in(tmp_path / "mini"):
                        one.kill()
                await client.delete(InferenceService, Key("default", "demo"))
                assert await holders() == ["mini"]
                async with box.open_agent(address, *here) as last:
                    await eventually(holders, lambda names: names == [])
                    await box.apply_demo()
                    await box.wait_ready()
                    await eventually(holders, lambda names: names == ["box"])
                    last.process.send_signal(signal.SIGTERM)
                    assert await last.process.wait() == 0
        assert await is_gone(client, Lease, Key(SYSTEM, "box"))
        for agent in (first, second, other, last):
            assert "forbidden" not in agent.err.lower()


async def _slice(client, key):
    return told_by(await client.get(EndpointSlice, key))


async def test_s2_a_host_joins_renews_its_token_and_outlives_its_end(assets, tmp_path):
    """S2: `agent join` makes an identity, the agent renews its token; one that expires stops no engine."""
    address = own_address()
    with trio.fail_after(TEST_SECONDS):
        async with open_real_cluster(assets, tmp_path, [], ()) as (plane, cluster, _):
            state, names = tmp_path / "agent", ("--name", "box", "--network", f"{address}/32", "-n", "default")

            async def join():
                words = ("agent", "join", "--kubeconfig", str(plane.kubeconfig), "--state-dir", str(state), *names)
                code, out, err = await run_program(tmp_path, *words)
                assert code == 0, out + err
                token = token_file().read_text()
                assert token not in out + err
                assert {oct(path.stat().st_mode) for path in (token_file(), state / "host.kubeconfig")} == {"0o100600"}
                return token

            def token_file():
                (path,) = token_paths(state)
                return path

            token = await join()
            host = attrs.evolve(cluster, kubeconfig=state / "host.kubeconfig")
            account = await cluster.client.get(ServiceAccount, Key(SYSTEM, "llmkube-agent-box"))

            def signed(began_seconds_ago, lifetime_seconds):
                began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=began_seconds_ago)
                return plane.signer.token(
                    SYSTEM, "llmkube-agent-box", account.metadata.uid, now=began, lifetime_seconds=lifetime_seconds
                )

            # past half of its life: the agent asks for another one by itself
            old = signed(3600, 7000)
            token_file().write_text(old)
            async with host.open_agent(address, "--namespace", "default") as agent:
                await until(lambda: bool(logs(agent, "host token renewed")))
                fresh = token_file().read_text()
                assert fresh not in (old, token)
                await host.apply_demo()
                await host.wait_ready()
                (engine,) = engines_in(state)

                # when it expires nothing stops, and the log names the command that helps
                token_file().write_text(signed(7200, 3600))
                await until(lambda: any("engines keep running" in line for line in agent.err.splitlines()))
                assert "llmkube agent join --name box" in agent.err
                note = state / "credential-problem"
                await until(note.exists)
                assert f"--network {address}/32 --namespace default" in note.read_text()
                _, at, port = await host.slice()
                assert await chat(f"http://{at}:{port}") == ANSWER
                assert engines_in(state) == [engine]

                # and once an administrator has joined the host again, it speaks again
                again = await join()
                seen = (await cluster.client.get(Lease, Key(SYSTEM, "box"))).spec.renew_time
                await eventually(
                    lambda: cluster.client.get(Lease, Key(SYSTEM, "box")), lambda one: one.spec.renew_time != seen
                )
                await until(lambda: not note.exists())
                assert engines_in(state) == [engine]

                # a deleted account is reported long before its token would be renewed
                await cluster.client.delete(ServiceAccount, Key(SYSTEM, "llmkube-agent-box"))
                await until(note.exists)
                assert engines_in(state) == [engine]
                last = await join()
                await until(lambda: not note.exists())
                secrets = (token, old, fresh, again, last, token_file().read_text())
                everything = {
                    "objects": await objects(cluster.client),
                    "command lines": words_of(psutil.process_iter(), lambda each: each.cmdline()),
                    "engines' environments": words_of(engines_in(state), lambda each: each.environ().values()),
                    "files": "".join(
                        path.read_text(errors="replace")
                        for path in state.rglob("*")
                        if path.is_file() and path != token_file()
                    ),
                }
                assert [(place, each) for place, text in everything.items() for each in secrets if each in text] == []
                assert {stat.S_IMODE(path.stat().st_mode) for path in state.glob("journal/**/*.json")} == {0o600}
            assert not note.exists()
            for secret in secrets:
                assert secret not in agent.err + agent.out


NAMES = ("--name", "box", "-n", "default")
DEV = (("Impersonate-User", "system:serviceaccount:default:dev"), ("Impersonate-Group", "system:authenticated"))
RULES = [{"apiGroups": ["inference.llmkube.dev"], "resources": ["models", "inferenceservices"], "verbs": ["*"]}]


async def test_s2_s8_dev_reaches_no_secret_no_file_and_no_name_through_a_host(assets, tmp_path):
    """An editor of our two kinds, and the token of the host that serves him: each is refused what S2 and S8 gave."""
    address, state = own_address(), tmp_path / "agent"
    with trio.fail_after(TEST_SECONDS):
        async with open_real_cluster(assets, tmp_path, [], ()) as (plane, cluster, _):
            admin = cluster.client
            words = ("agent", "join", "--kubeconfig", str(plane.kubeconfig), "--state-dir", str(state))
            code, out, err = await run_program(tmp_path, *words, *NAMES, "--network", f"{address}/32")
            assert code == 0, out + err
            token = base64.b64encode(b"hf_CanaryAdmin").decode()
            for namespace in ("default", "kube-system"):
                secret = {"metadata": {"name": "admin", "namespace": namespace}, "data": {"HF_TOKEN": token}}
                await admin.apply(Secret, secret, field_manager="admin")
            path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
            await admin.request_json("POST", f"{path}/roles", body={"metadata": {"name": "dev"}, "rules": RULES})
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "dev"}
            subjects = [{"kind": "ServiceAccount", "name": "dev", "namespace": "default"}]
            binding = {"metadata": {"name": "dev"}, "subjects": subjects, "roleRef": role}
            await admin.request_json("POST", f"{path}/rolebindings", body=binding)
            host = attrs.evolve(cluster, kubeconfig=state / "host.kubeconfig")
            async with (
                open_client(attrs.evolve(load_config(plane.kubeconfig), headers=DEV)) as dev,
                open_client(load_config(host.kubeconfig)) as stolen,
                host.open_agent(address, "--namespace", "default") as agent,
            ):
                await apply(dev, tmp_path, {"digest": "/etc/passwd", "missing": "/etc/none"})
                refusals = {(await fetched(admin, each, "SourceNotAllowed")).message for each in ("digest", "missing")}
                assert len({each.replace("/etc/none", "/etc/passwd") for each in refusals}) == 1
                # a Secret of the namespace that the administrator has not named to the host
                demo = {"source": "builtin://demo", "hardware": {"accelerator": "cpu"}}
                named = {"metadata": {"name": "secret", "namespace": "default"}}
                await dev.apply(Model, {**named, "spec": demo}, field_manager="dev")
                spec = {"modelRef": "secret", "apiKeySecretRef": {"name": "admin", "key": "HF_TOKEN"}}
                await dev.apply(InferenceService, {**named, "spec": spec}, field_manager="dev")
                await eventually(
                    lambda: admin.get(InferenceService, Key("default", "secret")),
                    lambda service: "the agent may not read Secret admin" in json.dumps(encode(service)),
                )
                piece = {
                    "metadata": {
                        "name": "kube-dns.box",
                        "namespace": "kube-system",
                        "labels": {"kubernetes.io/service-name": "kube-dns"},
                    },
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [address]}],
                    "ports": [{"name": "dns", "port": 53}],
                }
                for client in (dev, stolen):
                    for namespace in ("default", "kube-system"):
                        with pytest.raises(ForbiddenError):
                            await client.get(Secret, Key(namespace, "admin"))
                        with pytest.raises(ForbiddenError):
                            await client.list(Secret, namespace=namespace)
                    with pytest.raises(ForbiddenError):
                        await client.apply(EndpointSlice, piece, field_manager="dev")
                seen = await everything(admin)
            content = Path("/etc/passwd").read_bytes()
            for each in (hashlib.sha256(content).hexdigest(), "root:", "hf_CanaryAdmin", token):
                assert each not in seen + agent.err + agent.out

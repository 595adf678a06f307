"""On a real kube-apiserver: S2 as it was run, with nothing but one host's identity, and what that host needs."""

import functools
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from e2e.up_process import run_program
from envtest.test_real_controller import crds, make_model, open_impersonated, until
from llmkube.cli.commands.tools.rbac import agent_manifests
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.builtins import EndpointSlice, Lease, Secret, Service, ServiceAccount
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.codec import encode
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.model import Model
from llmkube.k8s.errors import ForbiddenError, NotFoundError
from llmkube.k8s.request import APPLY_PATCH
from llmkube.k8s.resource import Key
from llmkube.k8s.wire.names import claim_name
from llmkube.supervisor.host_policies import MAX_TOKEN_SECONDS, host_policies

pytestmark = pytest.mark.envtest
__all__ = ["crds"]  # the fixture, for pytest to find

READY_SECONDS = 60.0
POLL_SECONDS = 0.1
REMOVAL_SECONDS = 30.0
GROUP = "inference.llmkube.dev"
SERVICE = f"{GROUP}/service"
NOTE = f"{GROUP}/machine"
PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
MERGE = "application/merge-patch+json"
NETWORKS = ("192.168.7.0/24", "fd00:7::/64")
INSIDE = "192.168.7.20"
OUTSIDE = "192.168.8.20"


async def put(client: Client, manifest: dict[str, Any]) -> dict[str, Any]:
    """Apply any object of `PLURALS`."""
    metadata = manifest["metadata"]
    path = f"{PLURALS[manifest['kind']].format(metadata.get('namespace'))}/{metadata['name']}"
    params = {"fieldManager": "installer", "force": "true"}
    found = await client.request_json("PATCH", path, params=params, body=manifest, content_type=APPLY_PATCH)
    assert isinstance(found, dict)
    return found


@attrs.frozen(eq=False)
class Site:
    """A namespace that two hosts serve, each with its own identity, and the administrator."""

    admin: Client
    box: Client
    mini: Client
    namespace: str
    system: str

    def path(self, plural: str, name: str = "", *, namespace: str = "") -> str:
        group = {
            "endpointslices": "/apis/discovery.k8s.io/v1",
            "leases": "/apis/coordination.k8s.io/v1",
            "models": f"/apis/{GROUP}/v1alpha1",
            "inferenceservices": f"/apis/{GROUP}/v1alpha1",
        }.get(plural, "/api/v1")
        space = namespace or (self.system if plural in ("leases", "serviceaccounts") else self.namespace)
        return f"{group}/namespaces/{space}/{plural}" + (f"/{name}" if name else "")

    async def apply(self, who: Client, plural: str, body: dict[str, Any], **where: str) -> Any:
        params = {"fieldManager": "anything", "force": "true"}
        path = self.path(plural, body["metadata"]["name"], **where)
        kinds = {"services": "Service", "endpointslices": "EndpointSlice", "leases": "Lease", "endpoints": "Endpoints"}
        version = {"endpointslices": "discovery.k8s.io/v1", "leases": "coordination.k8s.io/v1"}.get(plural, "v1")
        whole = {"apiVersion": version, "kind": kinds[plural], **body}
        return await who.request_json("PATCH", path, params=params, body=whole, content_type=APPLY_PATCH)

    async def refused(self, who: Client, plural: str, body: dict[str, Any], *words: str) -> None:
        with pytest.raises(ForbiddenError) as caught:
            await self.apply(who, plural, body)
        for word in words:
            assert word in str(caught.value)

    def claim(self, holder: str, namespace: str = "", service: str = "chat") -> dict[str, Any]:
        space = namespace or self.namespace
        annotations = {f"{GROUP}/inferenceservice": f"{space}/{service}", f"{GROUP}/slot": "0"}
        labels = {f"{GROUP}/claim": service}
        metadata = {"name": claim_name(space, service, 0), "labels": labels, "annotations": annotations}
        return {"metadata": metadata, "spec": {"holderIdentity": holder}}


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """Return the Service of hosts."""
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    return {
        "metadata": {"name": name, "labels": {SERVICE: name}},
        "spec": {"type": "ClusterIP", "ports": ports, **spec},
    }


def piece(host: str, *addresses: str, of: str = "chat", name: str = "", **labels: str) -> dict[str, Any]:
    """Return the slice of a host."""
    own = {
        SERVICE: of,
        "kubernetes.io/service-name": of,
        "endpointslice.kubernetes.io/managed-by": "llmkube-agent",
        f"{GROUP}/host": host,
        **labels,
    }
    family = "IPv6" if any(":" in one for one in addresses) else "IPv4"
    return {
        "metadata": {"name": name or f"{of}.{host}", "labels": own},
        "addressType": family,
        "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
        "ports": [{"name": "http", "port": 9, "protocol": "TCP"}],
    }


def token_request(seconds: int) -> dict[str, Any]:
    spec = {"expirationSeconds": seconds}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}


def event(name: str, namespace: str, component: str, instance: str, kind: str = "InferenceService") -> dict[str, Any]:
    version = f"{GROUP}/v1alpha1" if kind == "InferenceService" else "v1"
    about = {"apiVersion": version, "kind": kind, "name": "chat", "namespace": namespace}
    content = {"reason": "Said", "type": "Normal", "message": "", "involvedObject": about}
    reporter = {"reportingComponent": component, "reportingInstance": instance}
    return {"metadata": {"name": name, "namespace": namespace}, **content, **reporter}


@asynccontextmanager
async def open_site(client: Client, kubeconfig: Any, namespace: str, *secrets: str) -> AsyncIterator[Site]:
    """Give two hosts their identities, install the policies, and wait until the server evaluates each of them."""
    system = f"{namespace}-system"
    installed: list[dict[str, Any]] = []
    for host in ("box", "mini"):
        for manifest in agent_manifests(system, namespace, host, NETWORKS, secrets):
            await put(client, manifest)
    try:
        for manifest in host_policies(system):
            await put(client, manifest)
            installed.append(manifest)
        async with (
            open_impersonated(kubeconfig, system, "llmkube-agent-box") as (box, _),
            open_impersonated(kubeconfig, system, "llmkube-agent-mini") as (mini, _),
        ):
            site = Site(client, box, mini, namespace, system)
            await wait_enforced(site)
            yield site
    finally:
        with trio.move_on_after(REMOVAL_SECONDS, shield=True):
            for manifest in installed:
                name = manifest["metadata"]["name"]
                await client.request_json("DELETE", f"{PLURALS[manifest['kind']]}/{name}")
            await client.request_json("DELETE", f"/api/v1/namespaces/{system}")


async def wait_enforced(site: Site) -> None:
    """Wait until each policy has refused an object: the API server enforces one some time after it was created."""
    theirs = {"metadata": {"name": "theirs"}, "spec": {"ports": [{"name": "web", "port": 80}]}}
    await site.admin.request_json("POST", site.path("services"), body=theirs)
    await make_model(site.admin, site.namespace, "probe")
    probe = {"metadata": {"name": "probe", "namespace": site.namespace}, "spec": {"modelRef": "probe"}}
    await site.admin.apply(InferenceService, probe, field_manager="user")
    probes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("leases", {"metadata": {"name": "other"}, "spec": {}}),
        ("services", {"metadata": {"name": "probe"}, "spec": {"ports": [{"port": 80}]}}),
        ("endpointslices", piece("mini")),
        ("endpointslices", piece("box", OUTSIDE, of="probe")),
        ("endpointslices", piece("box", of="theirs")),
        ("endpoints", {"metadata": {"name": "probe"}}),
        ("events", event("probe", site.namespace, "kubelet", "box")),
        ("serviceaccounts/llmkube-agent-box/token", token_request(MAX_TOKEN_SECONDS + 1)),
        ("models/probe/status", {"status": {"phase": "Failed"}}),
        ("inferenceservices/probe/status", {"status": {"phase": "Failed"}}),
    )
    with trio.fail_after(READY_SECONDS):
        for resource, body in probes:
            plural, *name = resource.split("/", 1)
            path = site.path(plural, *name)
            more: dict[str, Any] = {"params": {"dryRun": "All"}, "body": body}
            method = "POST"
            if resource.endswith("/status"):
                method, more["content_type"] = "PATCH", MERGE
            while True:
                try:
                    await site.box.request_json(method, path, **more)
                except ForbiddenError as error:
                    if "ValidatingAdmissionPolicy" in str(error):
                        break
                await trio.sleep(POLL_SECONDS)
    await site.admin.delete(InferenceService, Key(site.namespace, "probe"))
    await site.admin.delete(Model, Key(site.namespace, "probe"))


async def test_s2_no_secret_but_the_named_one(client, crds, namespace, real_kubeconfig):
    """S2: a host's token reads no Secret, of its namespace or of another, but those that an administrator named."""
    async with open_site(client, real_kubeconfig, namespace, "hf") as site:
        for name in ("hf", "other"):
            await client.request_json("POST", site.path("secrets"), body={"metadata": {"name": name}})
        assert (await site.box.get(Secret, Key(namespace, "hf"))).metadata.name == "hf"
        for key in (Key(namespace, "other"), Key("kube-system", "hf"), Key(site.system, "hf")):
            with pytest.raises(ForbiddenError):
                await site.box.get(Secret, key)
        for where in (namespace, None):
            with pytest.raises(ForbiddenError):
                await site.box.list(Secret, namespace=where)


async def test_s2_no_slice_of_another(client, crds, namespace, real_kubeconfig):
    """S2: no slice under another host's label or name, none behind a Service of others, none with a foreign address."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        await site.apply(site.box, "endpointslices", piece("box", INSIDE))
        await site.apply(site.box, "endpointslices", piece("box", "fd00:7::20", name="chat.box.ipv6"))
        await site.apply(site.mini, "endpointslices", piece("mini", INSIDE))
        refused = functools.partial(site.refused, site.box, "endpointslices")
        label = f"with its own label {GROUP}/host"
        await refused(piece("mini", INSIDE), label)
        await refused(piece("box", INSIDE, name="chat.mini"), label)
        await refused(piece("mini", INSIDE, of="new"), label)
        await refused(piece("box", INSIDE, name="new.mini"), "is named SERVICE.HOST")
        await refused(piece("box", INSIDE, of="chat.mini"), "is named SERVICE.HOST")
        await refused(piece("box", INSIDE, of="chat", name="chat.box.ipv4"), "is named SERVICE.HOST")
        await refused(piece("box", INSIDE, of="theirs"), "publish endpoints of Services with the label")
        managed = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
        await refused(piece("box", INSIDE, **managed), "managed-by=llmkube-agent")
        outside = "outside of the networks"
        await refused(piece("box", OUTSIDE), outside)
        await refused(piece("box", INSIDE, OUTSIDE), outside)
        await refused(piece("box", "fd00:8::20", name="chat.box.ipv6"), outside)
        with pytest.raises(ForbiddenError):
            await site.box.delete(EndpointSlice, Key(namespace, "chat.mini"))
        stands = await client.get(EndpointSlice, Key(namespace, "chat.mini"))
        assert stands.endpoints[0].addresses == (INSIDE,)
        # `kube-dns`, where this identity has no role at all
        with pytest.raises(ForbiddenError):
            await site.apply(site.box, "endpointslices", piece("box", INSIDE, of="kube-dns"), namespace="kube-system")
        await site.box.delete(EndpointSlice, Key(namespace, "chat.box"))


async def test_s2_an_address_is_valid_once_an_administrator_wrote_it(client, crds, namespace, real_kubeconfig):
    """A host that moves is refused until its account names the new network, and not at all without the annotation."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        path, note = site.path("serviceaccounts", "llmkube-agent-box"), f"{GROUP}/addresses"

        async def admitted(address: str) -> bool:
            try:
                await site.apply(site.box, "endpointslices", piece("box", address))
            except ForbiddenError as error:
                return "outside of the networks" not in str(error)
            return True

        for written, address in ((f"{OUTSIDE}/32,{INSIDE}/32", OUTSIDE), (f"{INSIDE}/32", INSIDE)):
            body = {"metadata": {"annotations": {note: written}}}
            await client.request_json("PATCH", path, body=body, content_type=MERGE)
            await until(functools.partial(admitted, address), True)
        for written in (None, "", "anything"):
            body = {"metadata": {"annotations": {note: written}}}
            await client.request_json("PATCH", path, body=body, content_type=MERGE)
            await until(functools.partial(admitted, INSIDE), False)
        with pytest.raises(ForbiddenError):
            await site.box.request_json("PATCH", path, body=body, content_type=MERGE)


async def test_s2_no_service_of_others(client, crds, namespace, real_kubeconfig):
    """S2: no Service of others, no externalIPs, no other type, no selector; hosts share those with our label."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        await site.apply(site.box, "services", service())
        await site.apply(site.mini, "services", service())
        refused = functools.partial(site.refused, site.box, "services")
        await refused(service(externalIPs=["198.51.100.7"]), "no externalIPs")
        await refused(service(type="NodePort"), "type ClusterIP")
        await refused(service(type="ExternalName", externalName="example.com"), "type ClusterIP")
        await refused(service(selector={"app": "web"}), "no selector")
        await refused(service("new", externalIPs=["198.51.100.7"]), "no externalIPs")
        await refused(service("theirs"), "with the label")
        other = service()
        other["metadata"]["labels"] = {SERVICE: "other"}
        await refused(other, "may not change the label")
        noted = service()
        noted["metadata"]["annotations"] = {"external-dns.alpha.kubernetes.io/hostname": "example.com"}
        await refused(noted, "no annotations")
        held = service("held")
        held["metadata"]["finalizers"] = ["example.com/forever"]
        await refused(held, "no finalizers")
        with pytest.raises(ForbiddenError):
            await site.apply(site.box, "services", service("kube-dns"), namespace="kube-system")
        theirs = await client.get(Service, Key(namespace, "theirs"))
        assert SERVICE not in theirs.metadata.labels

        def classic(name: str, address: str, **labels: str) -> dict[str, Any]:
            subset = {"addresses": [{"ip": address}], "ports": [{"name": "http", "port": 9}]}
            return {"metadata": {"name": name, "labels": labels}, "subsets": [subset]}

        await site.apply(site.box, "endpoints", classic("chat", INSIDE, **{SERVICE: "chat"}))
        await site.refused(
            site.box, "endpoints", classic("chat", OUTSIDE, **{SERVICE: "chat"}), "outside of the networks"
        )
        await site.refused(
            site.box, "endpoints", classic("theirs", INSIDE, **{SERVICE: "x"}), "publish endpoints of Services"
        )
        await site.refused(site.box, "endpoints", classic("new", INSIDE), "with the label")


async def test_s2_no_lease_of_another(client, crds, namespace, real_kubeconfig):
    """S2: a host renews its own Lease, claims for itself where it serves, takes over, and takes back; no more."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        presence = {"metadata": {"name": "box", "labels": {f"{GROUP}/host": "box"}}, "spec": {"holderIdentity": "box"}}
        await site.apply(site.box, "leases", presence)
        refused = functools.partial(site.refused, site.box, "leases")
        for name, labels in (("mini", {f"{GROUP}/host": "mini"}), ("mini", {f"{GROUP}/host": "box"}),
                             ("llmkube-controller", {}), ("other", {f"{GROUP}/claim": "chat"})):  # fmt: skip
            await refused({"metadata": {"name": name, "labels": labels}, "spec": {}}, "Lease with its own name")
        await refused({"metadata": {"name": "box", "labels": {f"{GROUP}/host": "mini"}}}, "must have the host's label")
        await refused(site.claim("mini"), "hold claims only for itself")
        await refused(site.claim("box", "kube-system"), "namespaces that it serves")
        odd = site.claim("box")
        odd["metadata"]["annotations"][f"{GROUP}/inferenceservice"] = "kube-system/chat"
        await refused(odd, "is named after its service")

        # another host's claim: taken over whole, or not changed
        await site.apply(site.mini, "leases", site.claim("mini"))
        with pytest.raises(ForbiddenError):
            await site.box.patch(
                Lease, Key(site.system, site.claim("")["metadata"]["name"]), {"spec": {"renewTime": None}}
            )
        moved = site.claim("box")
        moved["metadata"]["annotations"][f"{GROUP}/slot"] = "1"
        await refused(moved, "service and replica of a claim cannot be changed")
        await site.apply(site.box, "leases", site.claim("box"))
        await site.mini.delete(Lease, Key(site.system, site.claim("")["metadata"]["name"]))

        foreign = site.claim("gone", "kube-system")
        await site.apply(client, "leases", foreign)
        with pytest.raises(ForbiddenError):
            await site.box.delete(Lease, Key(site.system, foreign["metadata"]["name"]))
        await site.apply(client, "leases", {"metadata": {"name": "mini"}, "spec": {"holderIdentity": "mini"}})
        with pytest.raises(ForbiddenError):
            await site.box.delete(Lease, Key(site.system, "mini"))
        await site.box.delete(Lease, Key(site.system, "box"))


async def test_s2_no_field_of_another_writer(client, crds, namespace, real_kubeconfig):
    """S2: in a status a host writes only the agents' fields, under any field manager; the others do not change."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        time = "2026-01-01T00:00:00Z"

        def condition(kind: str, status: str = "True") -> dict[str, str]:
            return {"type": kind, "status": status, "reason": "Said", "message": "", "lastTransitionTime": time}

        async def write(who: Client, kind: type[Any], manager: str, status: dict[str, Any]) -> None:
            body = {"metadata": {"name": "phi", "namespace": namespace}, "status": status}
            await who.apply(kind, body, field_manager=manager, subresource="status")

        await make_model(client, namespace)
        body = {"metadata": {"name": "phi", "namespace": namespace}, "spec": {"modelRef": "phi"}}
        await client.apply(InferenceService, body, field_manager="user")
        for kind, own, mine in ((InferenceService, "Loaded", "schedulingStatus"), (Model, "Fetched", "path")):
            await write(client, kind, "llmkube-controller", {"phase": "Ready", "conditions": [condition("Available")]})
            await write(site.box, kind, "llmkube-agent-box", {mine: "said", "conditions": [condition(own)]})
            await write(site.mini, kind, "llmkube-agent-box", {mine: "more", "conditions": [condition(own, "False")]})
            for manager in ("llmkube-agent-box", "llmkube-controller"):
                for status in (
                    {"phase": "Failed"},
                    {"conditions": [condition("Available", "False")]},
                    {"conditions": [condition(own), condition("Progressing")]},
                ):
                    with pytest.raises(ForbiddenError) as caught:
                        await write(site.box, kind, manager, status)
                    assert "agents may only write" in str(caught.value)
            for patch in ({"phase": None}, {"conditions": []}, {"conditions": None}):
                with pytest.raises(ForbiddenError):
                    await site.box.patch(kind, Key(namespace, "phi"), {"status": patch}, subresource="status")
            found = encode(await client.get(kind, Key(namespace, "phi")))["status"]
            assert found["phase"] == "Ready"
            assert {one["type"]: one["status"] for one in found["conditions"]} == {"Available": "True", own: "False"}
            with pytest.raises(ForbiddenError):
                await site.box.patch(kind, Key(namespace, "phi"), {"spec": {"image": "x"}})


async def test_s2_no_token_but_its_own_and_no_event_of_another(client, crds, namespace, real_kubeconfig):
    """S2: a host asks for tokens of its own account, for at most 30 days, and forges no Event."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        token = site.path("serviceaccounts", "llmkube-agent-{}/token")
        granted = await site.box.request_json("POST", token.format("box"), body=token_request(3600))
        assert granted["status"]["token"]
        for host, seconds in (("mini", 3600), ("box", MAX_TOKEN_SECONDS + 1)):
            with pytest.raises(ForbiddenError):
                await site.box.request_json("POST", token.format(host), body=token_request(seconds))
        events = site.path("events")
        await site.box.request_json("POST", events, body=event("one", namespace, "llmkube-agent", "box"))
        for forged in (
            event("two", namespace, "kubelet", "box"),
            event("two", namespace, "llmkube-agent", "mini"),
            event("two", namespace, "llmkube-agent", "box", "Pod"),
        ):
            with pytest.raises(ForbiddenError):
                await site.box.request_json("POST", events, body=forged)
        with pytest.raises(ForbiddenError):
            await site.mini.request_json("PATCH", f"{events}/one", body={"message": "no"}, content_type=MERGE)
        await site.box.request_json("PATCH", f"{events}/one", body={"message": "again"}, content_type=MERGE)


async def test_other_writers_are_not_confined(client, crds, namespace, real_kubeconfig):
    """Users who are no hosts write the restricted objects as before."""
    async with open_site(client, real_kubeconfig, namespace) as site:
        await site.apply(client, "services", service("web", externalIPs=["198.51.100.7"], selector={"app": "web"}))
        await site.apply(client, "endpointslices", piece("box", OUTSIDE, of="theirs"))
        await site.apply(
            client, "leases", {"metadata": {"name": "llmkube-controller"}, "spec": {"holderIdentity": "x"}}
        )


async def test_s2_a_host_joins_with_a_token_of_an_hour(client, crds, namespace, real_kubeconfig, tmp_path):
    """S2: with one line and no administrator's kubeconfig a host gets the rights that were granted, and no more."""
    system, state = f"{namespace}-system", tmp_path / "state"
    grant = ("--kubeconfig", str(real_kubeconfig), "--name", "box", "--network", f"{INSIDE}/32", "-n", namespace)
    grant += ("--lease-namespace", system)

    async def join_token(*more: str) -> tuple[int, str, str]:
        return await run_program(tmp_path, "agent", "join-token", *grant, *more)

    try:
        code, line, err = await join_token("--secret", "hf")
        assert code == 0, err
        (tmp_path / "line").write_text(line)
        words = ("agent", "join", "--token-file", str(tmp_path / "line"), "--state-dir", str(state))
        code, out, err = await run_program(tmp_path, *words, kubeconfig=tmp_path / "none")
        assert code == 0, out + err
        async with open_client(load_config(state / "host.kubeconfig")) as box:
            presence = {"metadata": {"name": "box", "labels": {f"{GROUP}/host": "box"}, "annotations": {NOTE: "m (1)"}}}
            site = Site(client, box, box, namespace, system)
            await site.apply(box, "leases", presence)
            with pytest.raises(NotFoundError):
                await box.get(Secret, Key(namespace, "hf"))
            with pytest.raises(ForbiddenError):
                await box.get(Secret, Key(namespace, "other"))
            with pytest.raises(ForbiddenError):
                await box.get(Secret, Key(system, "hf"))

            # a host of another machine that is alive keeps its name
            async with trio.open_nursery() as nursery:
                nursery.start_soon(renew_for_ever, site, presence)
                code, out, err = await join_token()
                assert code != 0
                assert "the machine m (1) serves under it" in err
                assert out == ""
                account = await client.get(ServiceAccount, Key(system, "llmkube-agent-box"))
                code, _, err = await join_token("--network", f"{OUTSIDE}/32", "--overwrite")
                assert code == 0, err
                nursery.cancel_scope.cancel()
        after = await client.get(ServiceAccount, Key(system, "llmkube-agent-box"))
        assert account.metadata.annotations[f"{GROUP}/addresses"] == f"{INSIDE}/32"
        assert after.metadata.annotations[f"{GROUP}/addresses"] == f"{INSIDE}/32,{OUTSIDE}/32"

        # roles of a join before are taken back
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        elsewhere = (*grant[:-4], "-n", "default", "--lease-namespace", system, "--overwrite")
        for words_of_join, expected in ((elsewhere, "default"), ((*grant, "--overwrite"), namespace)):
            code, _, err = await run_program(tmp_path, "agent", "join-token", *words_of_join)
            assert code == 0, err
            for plural in ("rolebindings", "roles"):
                found = await client.get_json(
                    f"{rbac}/{plural}", params={"fieldSelector": "metadata.name=llmkube-agent-box"}
                )
                places = {each["metadata"]["namespace"] for each in found["items"]}
                assert {expected} == places & {"default", namespace}

        # a deleted account is reported
        await client.delete(ServiceAccount, Key(system, "llmkube-agent-box"))
        code, out, err = await run_program(tmp_path, *words, kubeconfig=tmp_path / "none")
        assert code != 0
        assert "llmkube agent join-token --name box" in err
        assert line.strip() not in out + err
    finally:
        with trio.move_on_after(REMOVAL_SECONDS, shield=True):
            for manifest in host_policies(system):
                name = manifest["metadata"]["name"]
                await client.request_json("DELETE", f"{PLURALS[manifest['kind']]}/{name}")
            await client.request_json("DELETE", f"/api/v1/namespaces/{system}")


async def renew_for_ever(site: Site, presence: dict[str, Any]) -> None:
    """Renew a Lease as a host that lives does."""
    for count in itertools.count():
        spec = {"holderIdentity": "box", "leaseDurationSeconds": 20, "leaseTransitions": count}
        await site.apply(site.box, "leases", {**presence, "spec": spec})
        await trio.sleep(1)

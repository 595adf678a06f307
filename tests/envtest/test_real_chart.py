"""The chart on a real kube-apiserver: the guide's command installs, what it grants is enough, and data outlives it."""

import datetime
import functools
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import yaml
from click.testing import CliRunner

from charts.helm_runs import EVERYTHING, GUIDE, NAMESPACE, OPENSHIFT, PACKAGED, run
from charts.package import package
from charts.repository import served
from e2e.up_process import open_program, run_program
from envtest.plane import ControlPlane, open_control_plane
from llmkube.cli.main import cli
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.errors import ForbiddenError
from llmkube.programs.server_side_apply import Applier, Manifest

pytestmark = pytest.mark.envtest

MODEL = {
    "apiVersion": "inference.llmkube.dev/v1alpha1",
    "kind": "Model",
    "metadata": {"name": "kept"},
    "spec": {"source": "builtin://demo"},
}
SERVED = "/apis/inference.llmkube.dev/v1alpha1/namespaces/default"
MODELS = f"{SERVED}/models"
WITHOUT_OPERATOR = (
    "--set",
    "metrics.serviceMonitor.enabled=false,metrics.engines.enabled=false,metrics.prometheusRule.enabled=false",
)
"""Nobody has installed the Prometheus operator's definitions."""

START_SECONDS = 60


@attrs.frozen
class Site:
    """A cluster, and a helm that knows our repository."""

    plane: ControlPlane
    client: Client
    home: Path

    async def helm(self, *args: str) -> str:
        call = functools.partial(run, "helm", *args, home=self.home, KUBECONFIG=str(self.plane.kubeconfig))
        return await trio.to_thread.run_sync(call)

    async def get(self, path: str):
        return await self.client.request_json("GET", path)

    async def account(self, name: str) -> Path:
        """Return a kubeconfig with a token of a ServiceAccount of the release."""
        found = await self.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}")
        now = datetime.datetime.now(datetime.UTC)
        token = self.plane.signer.token(NAMESPACE, name, found["metadata"]["uid"], now=now, lifetime_seconds=600)
        return self.plane.write_token_kubeconfig(self.home / f"{name}.kubeconfig", token)

    async def try_pod(self, spec: Mapping[str, Any]) -> None:
        """Have the API server judge a pod, without making it."""
        path, pod = f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": "tried"}, "spec": spec}
        await self.client.request_json("POST", path, params={"dryRun": "All"}, body=pod)

    async def deployment(self):
        return await self.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/llmkube-controller")


@asynccontextmanager
async def open_site(assets: Path, tmp_path: Path) -> AsyncIterator[Site]:
    """Open a cluster of its own: definitions of ours in a shared one would belong to another owner."""
    folder = tmp_path / "repository"
    folder.mkdir()
    package(folder, PACKAGED)
    with served(folder) as url:
        run("helm", "repo", "add", "llmkube", url, home=tmp_path)
        async with (
            open_control_plane(assets, tmp_path / "plane") as plane,
            open_client(load_config(plane.kubeconfig)) as client,
        ):
            yield Site(plane, client, tmp_path)


async def check_notes(site: Site, notes: str) -> None:
    """Account and Deployment of the notes come to be, and the API server takes the manifests in them."""
    (words,) = re.findall(r"^llmkube (rbac agent .*?) \|", notes, flags=re.MULTILINE)
    printed = CliRunner().invoke(cli, words.split())
    assert printed.exit_code == 0, printed.output
    manifests = [Manifest("notes", body) for body in yaml.safe_load_all(printed.output)]
    applied = await Applier(site.client).apply_all(manifests, lambda _: None)
    assert not any(each.error for each in applied), applied
    (account,) = re.findall(r"create token (\S+) ", notes)
    await site.account(account)
    (deployment,) = re.findall(r"rollout status deployment/(\S+)", notes)
    assert (await site.deployment())["metadata"]["name"] == deployment
    for each in yaml.safe_load_all(notes.partition("<<EOF\n")[2].partition("EOF\n")[0]):
        await site.client.request_json("POST", f"{SERVED}/{each['kind'].lower()}s", body=each)


async def test_the_guide_s_command_installs_what_the_controller_needs(assets: Path, tmp_path: Path):
    """The notes are true, the controller starts under its account, and so does the command of `helm test`."""
    async with open_site(assets, tmp_path) as site:
        output = await site.helm("install", *GUIDE)
        assert "STATUS: deployed" in output
        await check_notes(site, output.partition("NOTES:\n")[2])
        (only,) = (await site.deployment())["spec"]["template"]["spec"]["containers"]
        kubeconfig = await site.account("llmkube-controller")
        state = ("--state-dir", str(tmp_path / "state"))
        async with open_program(tmp_path, *only["args"], *state, kubeconfig=kubeconfig) as controller:
            with trio.fail_after(START_SECONDS):
                await controller.wait_for("err", "controller started")
        assert "forbidden" not in controller.err.lower()
        code, out, err = await run_program(tmp_path, "list", "--all-namespaces", kubeconfig=kubeconfig)
        assert code == 0, out + err


async def test_data_outlives_the_release(assets: Path, tmp_path: Path):
    """Upgrades reach the definitions; uninstalling leaves them and every Model, and a new install takes them over."""
    async with open_site(assets, tmp_path) as site:
        await site.helm("install", *GUIDE)
        await site.client.request_json("POST", MODELS, body=MODEL)
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/models.inference.llmkube.dev"
        older = await site.get(path)
        older["spec"]["names"].pop("shortNames")
        assert "shortNames" not in (await site.client.request_json("PUT", path, body=older))["spec"]["names"]
        await site.helm("upgrade", *GUIDE[:4], "-f", str(EVERYTHING), *WITHOUT_OPERATOR)
        assert (await site.get(path))["spec"]["names"]["shortNames"] == ["mdl"]
        assert (await site.deployment())["spec"]["replicas"] == 2
        await site.helm("uninstall", "llmkube", "-n", NAMESPACE)
        assert (await site.get(f"{MODELS}/kept"))["spec"]["source"] == "builtin://demo"
        await site.helm("install", *GUIDE)
        assert (await site.get(f"{MODELS}/kept"))["metadata"]["name"] == "kept"


async def test_a_restricted_namespace_admits_the_pods(assets: Path, tmp_path: Path):
    """Pod Security admission of level "restricted" takes the pods of the controller and of `helm test`."""
    async with open_site(assets, tmp_path) as site:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"metadata": {"name": NAMESPACE, "labels": labels}}
        await site.client.request_json("POST", "/api/v1/namespaces", body=namespace)
        for values in ((), ("-f", str(OPENSHIFT)), ("-f", str(EVERYTHING), *WITHOUT_OPERATOR)):
            await site.helm("install", *GUIDE, *values)
            template = (await site.deployment())["spec"]["template"]
            hooks = yaml.safe_load_all(await site.helm("get", "hooks", "llmkube", "-n", NAMESPACE))
            (test,) = (each for each in hooks if each["kind"] == "Pod")
            for spec in (template["spec"], test["spec"]):
                await site.try_pod(spec)
                spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
                with pytest.raises(ForbiddenError, match="violates PodSecurity"):
                    await site.try_pod(spec)
            await site.helm("uninstall", "llmkube", "-n", NAMESPACE)


async def test_the_next_controller_waits_for_no_lease_of_the_last(assets: Path, tmp_path: Path):
    """Uninstalling leaves no Lease, although the controller has lost its rights before it could hand its own back."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    async with open_site(assets, tmp_path) as site:
        await site.client.request_json("POST", "/api/v1/namespaces", body={"metadata": {"name": "ml"}})
        for values in ((), ("--set", "controller.namespace=ml")):
            await site.helm("install", *GUIDE, *values)
            (only,) = (await site.deployment())["spec"]["template"]["spec"]["containers"]
            kubeconfig = await site.account("llmkube-controller")
            state = ("--state-dir", str(tmp_path / "state"))
            async with open_program(tmp_path, *only["args"], *state, kubeconfig=kubeconfig) as controller:
                with trio.fail_after(START_SECONDS):
                    await controller.wait_for("err", "controller started")
                    (lease,) = (await site.get(path))["items"]
                    assert lease["spec"]["holderIdentity"]
                    await site.helm("uninstall", "llmkube", "-n", NAMESPACE)
                    assert (await site.get(path))["items"] == []
            # one that is confined to a namespace may create no other: that is no warning
            started = controller.err.partition("controller started")[0]
            assert '"level": "warning"' not in started, started

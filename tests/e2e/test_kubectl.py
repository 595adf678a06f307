"""Unmodified kubectl against the embedded server over TLS.

The kubectl on PATH, and others (older, newer) that `LLMKUBE_TEST_KUBECTL=path[:path…]` names.
"""

import os
import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
import trio

from contracts.widgets import widget_crd
from e2e.kubectl_tool import Kubectl, needs_kubectl
from llmkube.apiserver.server import open_api_server

pytestmark = [pytest.mark.e2e, pytest.mark.kubectl, pytest.mark.ci]

KUBECTLS = ["kubectl", *filter(None, os.environ.get("LLMKUBE_TEST_KUBECTL", "").split(":"))]
CRDS = Path(__file__).parents[2] / "charts" / "llmkube" / "files" / "crds.yaml"

MANIFESTS = """
apiVersion: check.llmkube.dev/v1
kind: Widget
metadata: {name: demo, labels: {app: demo}}
spec: {size: %(size)d, replicas: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {size: "%(size)d"}
"""


class AnyKubectl(Kubectl):
    """A kubectl of any version, with the manifests of this file."""

    minor = 0

    async def apply(self, size: int, *args: str) -> str:
        return await self.run("apply", *args, "-f", "-", stdin=MANIFESTS % {"size": size})


@pytest.fixture(params=KUBECTLS)
def program(request):  # not async: a skip within Trio loses its reason
    return needs_kubectl(request.param)


@pytest.fixture
async def kubectl(program, tmp_path):
    async with open_api_server(tmp_path, port=0) as handle:
        await handle.server.ensure([widget_crd()])
        tool = AnyKubectl(program, handle.kubeconfig, tmp_path)
        version = re.search(r"v1\.(\d+)\.", await tool.run("version", "--client"))
        tool.minor = int(version[1])
        yield tool


@asynccontextmanager
async def in_background(tool: Kubectl, *args: str):
    """Yield a function that reads the next line of a kubectl in the background."""
    process = await trio.lowlevel.open_process([tool.program, *args], stdout=PIPE, stderr=STDOUT, env=tool.env)
    pending = b""

    async def next_line() -> str:
        nonlocal pending
        with trio.fail_after(60):
            while b"\n" not in pending:
                chunk = await process.stdout.receive_some()
                assert chunk, f"kubectl ended: {pending.decode()}"
                pending += chunk
        line, _, pending = pending.partition(b"\n")
        return line.decode()

    try:
        yield next_line
    finally:
        process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await process.wait()
        await process.stdout.aclose()


async def test_apply_is_idempotent_and_diffs(kubectl):
    """Applied twice is unchanged; changed is seen by diff, then configured; dry runs leave no trace."""
    assert (await kubectl.apply(3)).count("created") == 3
    assert (await kubectl.apply(3)).count("unchanged") == 3
    changed = MANIFESTS % {"size": 4}
    shown = await kubectl.run("diff", "-f", "-", stdin=changed, code=1)
    assert "-  size: 3" in shown
    assert "+  size: 4" in shown
    assert (await kubectl.apply(4, "--dry-run=server")).count("configured (server dry run)") == 2
    assert (await kubectl.apply(4)).count("configured") == 2
    assert await kubectl.run("diff", "-f", "-", stdin=changed) == ""
    assert await kubectl.run("get", "wd", "demo", "-o", "jsonpath={.spec.size}") == "4"


async def test_server_side_apply_and_its_conflicts(kubectl):
    """Server-side apply works on custom and built-in kinds, and another manager's field is a conflict."""
    assert (await kubectl.apply(3, "--server-side")).count("serverside-applied") == 3
    other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    output = await kubectl.run(*other, stdin=MANIFESTS % {"size": 5}, code=1)
    assert 'conflict with "kubectl": .spec.size' in output
    await kubectl.apply(5, "--server-side", "--field-manager=other", "--force-conflicts")


async def test_get_in_every_form(kubectl):
    """Tables, wide tables, names, yaml, json, selectors and an absent object read as in a cluster."""
    await kubectl.apply(3)
    header, row = (await kubectl.run("get", "widgets")).splitlines()
    assert (header.split(), row.split()) == (["NAME", "SIZE"], ["demo", "3"])
    header, row = (await kubectl.run("get", "svc", "-o", "wide")).splitlines()
    assert header.split() == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"]
    assert re.match(r"web +ClusterIP +10\.\d+\.\d+\.\d+ +<none> +80/TCP +\d+s +<none>", row)
    assert await kubectl.run("get", "wd", "-o", "name") == "widget.check.llmkube.dev/demo\n"
    assert "colour: red" in await kubectl.run("get", "wd", "demo", "-o", "yaml")
    assert '"colour": "red"' in await kubectl.run("get", "wd", "-l", "app in (demo)", "-o", "json")
    assert "No resources found" in await kubectl.run("get", "wd", "-l", "app=other")
    assert "demo" in await kubectl.run("get", "wd", "-A", "--field-selector", "metadata.name=demo")
    output = await kubectl.run("get", "wd", "absent", code=1)
    assert output == 'Error from server (NotFound): widgets.check.llmkube.dev "absent" not found\n'
    assert "Active" in await kubectl.run("get", "namespaces")
    assert "No resources found" in await kubectl.run("get", "events")


async def test_describe_and_explain(kubectl):
    """Describe shows spec and events of custom and built-in kinds; explain knows the CRD's fields."""
    await kubectl.apply(3)
    shown = await kubectl.run("describe", "wd", "demo")
    assert re.search(r"Size: +3", shown)
    assert re.search(r"Events: +<none>", shown)
    assert re.search(r"TargetPort: +80/TCP", await kubectl.run("describe", "svc", "web"))
    assert re.search(r"Status: +Active", await kubectl.run("describe", "ns", "default"))
    assert re.search(r"FIELD: +size <integer>", await kubectl.run("explain", "widgets.spec.size"))
    assert "ports" in await kubectl.run("explain", "service.spec")


async def test_watching_with_get(kubectl):
    """`get -w` shows the object and each change as a row."""
    await kubectl.apply(3)
    async with in_background(kubectl, "get", "wd", "demo", "-w") as next_line:
        assert (await next_line()).split() == ["NAME", "SIZE"]
        assert (await next_line()).split() == ["demo", "3"]
        await kubectl.run("patch", "wd", "demo", "--type=merge", "-p", '{"spec":{"size":7}}')
        assert (await next_line()).split() == ["demo", "7"]


async def test_patches_labels_and_scale(kubectl):
    """The four ways to change a field, and the error for a wrong value."""
    await kubectl.apply(3)
    await kubectl.run("patch", "wd", "demo", "--type=merge", "-p", '{"spec":{"size":4}}')
    operation = '[{"op":"replace","path":"/spec/size","value":5}]'
    await kubectl.run("patch", "wd", "demo", "--type=json", "-p", operation)
    await kubectl.run("patch", "svc", "web", "-p", '{"spec":{"ports":[{"name":"more","port":81}]}}')
    assert await kubectl.run("get", "svc", "web", "-o", "jsonpath={.spec.ports[*].port}") in {"80 81", "81 80"}
    await kubectl.run("label", "wd", "demo", "tier=web")
    await kubectl.run("annotate", "wd", "demo", "note=yes")
    await kubectl.run("scale", "wd", "demo", "--replicas=3")
    fields = "jsonpath={.spec.size} {.spec.replicas} {.metadata.labels.tier}"
    shown = await kubectl.run("get", "wd", "demo", "-o", fields)
    assert shown == "5 3 web"
    output = await kubectl.run("patch", "wd", "demo", "--type=merge", "-p", '{"spec":{"size":99}}', code=1)
    assert "spec.size in body should be less than or equal to 10" in output


async def test_edit(kubectl):
    """`kubectl edit` saves what the editor changed."""
    await kubectl.apply(3)
    kubectl.env["KUBE_EDITOR"] = "sed -i s/size:.3/size:\\ 8/"
    await kubectl.run("edit", "wd", "demo")
    assert await kubectl.run("get", "wd", "demo", "-o", "jsonpath={.spec.size}") == "8"


async def test_wait(kubectl):
    """Waiting for a condition, a field and a deletion ends when it occurs."""
    await kubectl.apply(3)
    crd = "crd/widgets.check.llmkube.dev"
    assert "condition met" in await kubectl.run("wait", "--for=condition=established", crd, "--timeout=30s")
    async with trio.open_nursery() as nursery:
        if kubectl.minor >= 23:  # the first with --for=jsonpath
            waiting = ("wait", "wd/demo", "--for=jsonpath={.spec.size}=6", "--timeout=30s")
            nursery.start_soon(partial(kubectl.run, *waiting))
        await kubectl.run("patch", "wd", "demo", "--type=merge", "-p", '{"spec":{"size":6}}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(kubectl.run, "wait", "wd/demo", "--for=delete", "--timeout=30s"))
        await kubectl.run("delete", "wd", "demo", "--wait=false")


async def test_delete_in_every_way(kubectl):
    """By file, by selector, in the foreground, and a whole namespace."""
    await kubectl.apply(3)
    assert (await kubectl.run("delete", "-f", "-", stdin=MANIFESTS % {"size": 3})).count("deleted") == 3
    await kubectl.apply(3)
    assert "deleted" in await kubectl.run("delete", "wd", "-l", "app=demo", "--cascade=foreground")
    assert "deleted" in await kubectl.run("delete", "svc", "web", "--cascade=orphan")
    await kubectl.run("create", "namespace", "room")
    await kubectl.run("create", "configmap", "cm", "-n", "room", "--from-literal=a=b")
    assert "deleted" in await kubectl.run("delete", "namespace", "room")
    await kubectl.run("get", "namespace", "room", code=1)


async def test_validation_before_the_server_sees_it(kubectl):
    """A misspelt field is refused, by the client or by the server."""
    manifest = "apiVersion: check.llmkube.dev/v1\nkind: Widget\nmetadata: {name: x}\nspec: {size: 1, colur: red}\n"
    assert 'unknown field "' in await kubectl.run("apply", "-f", "-", stdin=manifest, code=1)


async def test_creating_without_a_file(kubectl):
    """`kubectl create` of the common kinds works, whatever encoding this kubectl prefers."""
    await kubectl.run("create", "namespace", "room")
    await kubectl.run("create", "configmap", "cm", "--from-literal=a=b")
    await kubectl.run("create", "secret", "generic", "token", "--from-literal=a=b")
    await kubectl.run("create", "service", "clusterip", "svc", "--tcp=80:8080")
    await kubectl.run("create", "serviceaccount", "robot")
    assert await kubectl.run("get", "cm", "cm", "-o", "jsonpath={.data.a}") == "b"
    assert await kubectl.run("get", "secret", "token", "-o", "jsonpath={.data.a}") == "Yg=="
    assert await kubectl.run("get", "svc", "svc", "-o", "jsonpath={.spec.ports[0].targetPort}") == "8080"
    assert (await kubectl.run("auth", "can-i", "create", "services")).endswith("yes\n")


async def test_api_resources_and_versions(kubectl):
    """Both list built-in kinds and the CRD's."""
    shown = await kubectl.run("api-resources")
    for plural in ("configmaps", "endpointslices", "leases", "widgets"):
        assert plural in shown
    assert "check.llmkube.dev/v1" in (await kubectl.run("api-versions")).splitlines()
    assert await kubectl.run("get", "--raw", "/readyz") == "ok"

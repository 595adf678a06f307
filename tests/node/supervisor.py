"""Run a one-node cluster inside the keeper's namespaces, and start again what ends, until the namespaces end."""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from envtest.certs import Authority, ServiceAccountSigner
from envtest.plane import ISSUER
from envtest.programs import Program
from node import cluster
from node.images import images, pinned
from node.wiring import MACHINES, NODE, STATE, connect, mount, run

START_SECONDS = 180.0
"""A warm start takes about 20 s; a machine that is busy with a build may need much longer."""

AGAIN_SECONDS = 1.0
CTR = ("ctr", "--namespace", "k8s.io", "images")
KUBECTL = ("kubectl", "--kubeconfig", str(STATE / "admin.kubeconfig"))


async def supervise() -> None:
    """Start everything, say on stdout that the node is ready, and keep it so; the kernel ends this."""
    began = time.monotonic()
    await mount()
    os.environ["PATH"] = cluster.path()
    cluster.write_files(Authority("llmkube-node", datetime.datetime.now(datetime.UTC)), ServiceAccountSigner(ISSUER))
    async with trio.open_nursery() as nursery:
        with trio.fail_after(START_SECONDS):
            machines = {name: await _open_machine(nursery, name) for name in MACHINES}
            await connect(machines)
            async with trio.open_nursery() as starting:
                starting.start_soon(_start_control_plane, nursery)
                starting.start_soon(_start_containers, nursery)
            for program in (cluster.kubelet(), cluster.proxy(), cluster.coredns()):
                nursery.start_soon(_keep, program)
            await _answers(*KUBECTL, "wait", f"node/{NODE}", "--for=condition=Ready", "--timeout=5s")
        ready = {"machines": machines, "seconds": round(time.monotonic() - began, 1)}
        sys.stdout.write(json.dumps(ready) + "\n")
        sys.stdout.flush()


async def _open_machine(nursery: trio.Nursery, name: str) -> int:
    """Boot a machine next to the node, with processes and a network of its own; return its process 1."""
    reaper = (sys.executable, "-m", "node.reaper", "sleep", "infinity")
    spaces = ("--net", "--pid", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc")
    process = await trio.lowlevel.open_process(["unshare", *spaces, *reaper], stdin=subprocess.DEVNULL)
    nursery.start_soon(process.wait)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while True:
        if found := children.read_text().split():
            break
        await trio.sleep(0.01)
    # unshare mounts /proc after the fork: from then on the machine is what it will be
    while True:
        if Path(f"/proc/{found[0]}/comm").read_text() != Path(f"/proc/{process.pid}/comm").read_text():
            break
        await trio.sleep(0.01)
    await run("nsenter", "--target", found[0], "--uts", "hostname", name)
    return int(found[0])


async def _start_control_plane(nursery: trio.Nursery) -> None:
    nursery.start_soon(_keep, cluster.etcd())
    nursery.start_soon(_keep, cluster.api_server())
    await _answers(*KUBECTL, "get", "--raw", "/readyz")
    for program in (cluster.controller_manager(), cluster.scheduler()):
        nursery.start_soon(_keep, program)
    with tempfile.NamedTemporaryFile("w", dir=STATE, suffix=".yaml") as file:
        file.write(cluster.NAME_SERVICE)
        file.flush()
        await _answers(*KUBECTL, "apply", "-f", file.name)


async def _start_containers(nursery: trio.Nursery) -> None:
    nursery.start_soon(_keep, cluster.containerd())
    await _answers("ctr", "version")
    for image in images():
        await run(*CTR, "import", "--local", str(image.archive))
        await run(*CTR, "tag", image.name, pinned(image))


async def _keep(program: Program) -> None:
    """Run a program, and run it again whenever it ends: what init does on a node."""
    while True:
        await program.start()
        await program.wait()
        await trio.sleep(AGAIN_SECONDS)


async def _answers(*command: str) -> None:
    """Return once a command succeeds."""
    while True:
        if not (await trio.run_process(command, check=False, capture_stdout=True, capture_stderr=True)).returncode:
            break
        await trio.sleep(0.1)


def _last_words() -> str:
    logs = sorted((STATE / "logs").glob("*.log"))
    return "\n".join(f"== {log.name}\n{log.read_bytes()[-2000:].decode(errors='replace')}" for log in logs)


if __name__ == "__main__":
    try:
        trio.run(supervise)
    except BaseException:
        sys.stderr.write(_last_words())
        raise

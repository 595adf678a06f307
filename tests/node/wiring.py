"""The node's private mounts and networks: nothing here reaches beyond the namespaces that the keeper has made."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import trio

from node.build import debian_dir

STATE = Path("/run/node")
"""A tmpfs of the node's mount namespace: programs' files, logs, keys, containers. It is gone with the node."""

NODE = "llmkube-node"
ADDRESS = "192.168.77.1"
MACHINES: Mapping[str, str] = {"mac": "192.168.77.2", "mac2": "192.168.77.3"}
"""Hosts on the node's wire that know nothing of pods, and their addresses."""

NETWORK = "192.168.77.0/24"
PODS = "10.244.0.0/24"

SYSCTLS: Mapping[str, str] = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
}
"""Settings that the kubelet requires, and would set for the whole machine."""


async def run(*command: str) -> str:
    """Run a command and return what it printed; CalledProcessError when it fails."""
    done = await trio.run_process(command, capture_stdout=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode()


async def mount() -> None:
    """Lay the mounts of a node over those of the machine."""
    await run("mount", "--make-rprivate", "/")
    await run("hostname", NODE)
    # as if Debian's packages were installed
    await run("mount", "-t", "overlay", "-o", f"lowerdir={debian_dir()}/usr:/usr", "overlay", "/usr")
    await run("mount", "-t", "sysfs", "sysfs", "/sys")
    await _mount_cgroups()
    await run("mount", "-t", "tmpfs", "-o", "mode=755", "llmkube-node", "/run")
    for name in ("logs", "var", "work", "containerd", "kubelet", "volumes"):
        (STATE / name).mkdir(parents=True)
    layers = f"lowerdir=/var,upperdir={STATE / 'var'},workdir={STATE / 'work'}"
    await run("mount", "-t", "overlay", "-o", layers, "overlay", "/var")  # /var/log/pods, /var/lib/cni, ...
    Path("/var/lib/kubelet").mkdir(parents=True, exist_ok=True)
    await run("mount", "--bind", str(STATE / "kubelet"), "/var/lib/kubelet")  # the kubelet's statistics know no overlay
    for name, value in SYSCTLS.items():  # it finds them set, and nothing of the machine changes
        stand_in = STATE / "sysctl" / name
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(f"{value}\n")
        await run("mount", "--bind", str(stand_in), f"/proc/sys/{name}")


async def _mount_cgroups() -> None:
    await run("mount", "-t", "tmpfs", "-o", "mode=755", "cgroup", "/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, names, _ = line.split(":", 2)
        if number == "0":  # the unified hierarchy, which this machine does not use
            continue
        folder = Path("/sys/fs/cgroup", names.removeprefix("name="))
        folder.mkdir()
        await run("mount", "-t", "cgroup", "-o", f"none,{names}" if "=" in names else names, "cgroup", str(folder))
        for name in names.split(","):
            if name != folder.name and "=" not in name:
                folder.with_name(name).symlink_to(folder.name)


async def connect(processes: Mapping[str, int]) -> None:
    """Lay a wire from the node to each machine: a switch, one port for each.

    Args:
        processes: The number of a process in each machine's network namespace.
    """
    await run("ip", "link", "set", "lo", "up")
    await run("ip", "link", "add", "lan", "type", "bridge")
    await run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "lan")
    await run("ip", "link", "set", "lan", "up")
    for name, pid in processes.items():
        inside = ("nsenter", "--target", str(pid), "--net", "ip")
        await run("ip", "link", "add", name, "type", "veth", "peer", "name", "en0", "netns", str(pid))
        await run("ip", "link", "set", name, "master", "lan", "up")
        await run(*inside, "addr", "add", f"{MACHINES[name]}/24", "dev", "en0")
        await run(*inside, "link", "set", "en0", "up")
        await run(*inside, "link", "set", "lo", "up")
    # without a default route no ClusterIP is reached from the node: routing comes before translation
    await run("ip", "route", "add", "default", "via", "192.168.77.254")
    for name in ("net/ipv4/ip_forward", "net/bridge/bridge-nf-call-iptables"):
        setting = Path("/proc/sys", name)
        if setting.exists():
            setting.write_text("1")

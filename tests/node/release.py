"""The chart, installed by the guide's words with the images that were built here, in a repository of its own."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import trio

from charts.helm_runs import GUIDE, NAMESPACE, run
from charts.package import package
from charts.repository import served
from node.images import images, pinned, reference
from node.running_node import Node
from node.wiring import NETWORK

VALUES = ("--set", f"workloads.allowPrivateSources={{{NETWORK}}}")
"""Values for a cluster with a web server of its own for weights (docs/guides/models.md)."""


@attrs.frozen
class Release:
    """helm, told where the cluster is."""

    node: Node
    home: Path

    def helm(self, *args: str) -> str:
        return run("helm", *args, home=self.home, KUBECONFIG=str(self.node.kubeconfig))

    def install(self, *more: str) -> str:
        return self.helm("install", *GUIDE, *VALUES, *more, "--wait")

    async def in_thread(self, *args: str) -> str:
        return await trio.to_thread.run_sync(functools.partial(self.helm, *args))

    async def reinstall(self) -> None:
        await trio.to_thread.run_sync(self.install)

    async def installed(self) -> bool:
        return "llmkube" in (await self.in_thread("list", "-n", NAMESPACE, "-q")).split()


@contextmanager
def opened(node: Node, home: Path) -> Iterator[Release]:
    """Package the chart with our images, add the repository as users do, and install."""
    folder = home / "repository"
    built = {image.name: pinned(image) for image in images()}
    package(folder, built[reference("llmkube")], built[reference("llmkube-llama")])
    with served(folder) as url:
        run("helm", "repo", "add", "llmkube", url, home=home)
        release = Release(node, home)
        release.install()
        yield release

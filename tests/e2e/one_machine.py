"""A running `llmkube up` that serves the demo and the models of a test."""

import re
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from e2e.separate_programs import eventually
from e2e.up_process import DEMO, FREE_PORTS, command_line, engines_in, open_up
from llmkube.k8s.auth.kubeconfig import load_config
from llmkube.k8s.client import Client, open_client
from llmkube.k8s.crd.inferenceservice import InferenceService
from llmkube.k8s.crd.meta import Condition
from llmkube.k8s.resource import Key


@attrs.frozen
class Up:
    """A running `llmkube up` that serves the demo and the models of the test."""

    client: Client
    gateway: str
    state: Path
    probes: str

    async def wait_condition(self, kind, name, condition, accept):
        """Return a condition of an object once it is accepted."""

        async def read() -> Condition | None:
            conditions = (await self.client.get(kind, Key("default", name))).status.conditions
            return next((each for each in conditions if each.type == condition), None)

        return await eventually(read, lambda found: found is not None and accept(found))

    async def wait_service(self, name, condition, accept):
        """Return a condition of a service once it is accepted."""
        return await self.wait_condition(InferenceService, name, condition, accept)

    async def wait_loaded(self, name, *reasons):
        """Return a service's `Loaded` condition once it has one of the reasons."""
        return await self.wait_service(name, "Loaded", lambda found: found.reason in reasons)

    def engine(self, name):
        """The engine of one service."""
        (engine,) = (each for each in engines_in(self.state) if name in command_line(each))
        return engine


@asynccontextmanager
async def open_up_with(tmp_path, *args, documents=(), prefix=()):
    """Run `llmkube up` with the demo and these documents; `prefix` as for `open_program`."""
    state, file = tmp_path / "state", tmp_path / "all.yaml"
    file.write_text("\n---\n".join([DEMO.read_text(), *documents]))
    async with open_up(tmp_path, "--state-dir", str(state), *FREE_PORTS, "-f", str(file), *args, prefix=prefix) as up:
        _, gateway, probes = await up.urls()
        await up.wait_for("out", "stop +Ctrl-C")
        async with open_client(load_config(state / "kubeconfig", None)) as client:
            yield Up(client, gateway, state, probes)


def served(name, source=None):
    """Return the demo's manifests with another name and, if given, another source."""
    text = DEMO.read_text().replace("name: demo", f"name: {name}").replace("modelRef: demo", f"modelRef: {name}")
    return re.sub(r" +sha256: .*\n", "", text.replace("builtin://demo", source)) if source else text

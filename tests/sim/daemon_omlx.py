"""oMLX as a simulated shared daemon: one process with all models, folders that its owner configures, and a key."""

import math
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from llmkube.programs.daemon_engine import omlx_program
from llmkube.programs.daemon_engine.omlx_program import OmlxDependencies, link_name, open_model, parse
from llmkube.runtimes.process import omlx
from programs.daemon_engine.fake_omlx import GIB, FakeOmlx
from sim.daemon import LOAD_SECONDS, LoadedModel

FOREIGN_FOLDER = "/Volumes/usb/foreign"
"""A model of no service."""

OWN_KEY = "CanaryKeyOfOurOwn"


async def as_written(path):
    """Return the path: no path of a simulated machine is a link."""
    await trio.lowlevel.checkpoint()
    return path


@attrs.frozen
class Omlx:
    """oMLX's implementation of `Engine`.

    Attributes:
        folders: The owner's models: id to folder. A front's own server serves all others.
    """

    runtime: str = omlx.NAME
    module: str = omlx_program.__name__
    port: int = 8000
    folders: dict = attrs.field(
        factory=lambda: {
            "one": "/sim/builtin:__one",
            "two": "/sim/builtin:__two",
            "foreign": FOREIGN_FOLDER,
        }
    )

    def parse(self, argv):
        return parse(argv, {})

    def file_of(self, options):
        return str(options.model)

    def known_file(self, adapter):
        return adapter.folder

    @asynccontextmanager
    async def opened(self, options, starter, daemons):
        deps = OmlxDependencies(daemons.wire, daemons.processes, starter, resolve=as_written)
        async with open_model(options, deps) as model:
            yield model

    def made(self, number, options=None):
        own = {} if options is None else {link_name(Path(options.model), embeds=False): str(options.model)}
        return FakeOmlx(
            folders=own or dict(self.folders),
            sizes=defaultdict(lambda: 4 * GIB),
            key=OWN_KEY if own else "",
            load_seconds=LOAD_SECONDS,
            pid=300_000 + 1_000 * number,
        )

    def held(self, fake):
        fake.holding()  # completes a pending unload
        for name in fake.held:
            until = fake._going.get(name, math.inf)
            yield LoadedModel(fake.pid, name if name in fake.loaded else "", fake.folders.get(name, ""), until)
        for name, _, since in fake.kept:
            yield LoadedModel(fake.pid, "", fake.folders.get(name, ""), known_to=since)

    def forget(self, fake):
        fake.folders = {"foreign": FOREIGN_FOLDER}
        fake.default = "foreign"

    def replace_model(self, fake, name):
        fake.folders[name] = FOREIGN_FOLDER
        fake.put(name)

    def repair(self, fake):
        fake.folders, fake.key, fake.default = dict(self.folders), "", ""

    def is_changed(self, fake):
        return fake.folders != self.folders or bool(fake.key or fake.default)

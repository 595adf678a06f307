"""Ollama as a simulated shared daemon: a process for each model, and a store that a front fills."""

import hashlib
import math
from contextlib import asynccontextmanager

import attrs

from llmkube.programs.daemon_engine import ollama_program
from llmkube.programs.daemon_engine.ollama_api import OllamaApi
from llmkube.programs.daemon_engine.ollama_program import OllamaModel, parse
from llmkube.programs.daemon_engine.server import borrow_or_start
from llmkube.runtimes.process import ollama
from programs.daemon_engine.fake_ollama import FakeDaemon
from sim.daemon import LOAD_SECONDS, LoadedModel

FOREIGN_FILE = "sha256-" + 64 * "0"
"""Weights of no service."""


@attrs.frozen
class FileOf:
    """The weights of a service, in either store."""

    name: str
    file: str
    servers: list

    async def prepare(self, api):
        await api.version()
        for each in self.servers:
            if api.url.endswith(f":{each.port}"):
                each.fake.store[self.name] = self.file
        return self.file


@attrs.frozen
class Ollama:
    """Ollama's implementation of `Engine`."""

    runtime: str = ollama.NAME
    module: str = ollama_program.__name__
    port: int = 11434

    def parse(self, argv):
        return parse(argv, {})

    def file_of(self, options):
        return "sha256-" + hashlib.sha256(options.model.encode()).hexdigest()

    def known_file(self, adapter):
        return adapter.blob

    @asynccontextmanager
    async def opened(self, options, starter, daemons):
        theirs = OllamaApi(daemons.wire, options.daemon)
        async with borrow_or_start("Ollama", theirs.url, theirs.version, starter) as server:
            api = OllamaApi(daemons.wire, server.url)
            file = FileOf(options.store_name, self.file_of(options), daemons.servers)
            yield OllamaModel(api, server.port, options.store_name, daemons.processes, file, server=server.pid)

    def made(self, number, options=None):
        fake = FakeDaemon(pid=7_000 + number, load_seconds=LOAD_SECONDS)
        fake._next_pid = 100_000 * (number + 1)
        return fake

    def held(self, fake):
        names = {pid: name for name, pid in fake.loaded.items()}
        for pid in fake.holders():
            file, parent = fake.held[pid]
            name = names.get(pid, "")
            until = fake.expires.get(name, math.inf) if name else fake._going.get(pid, math.inf)
            yield LoadedModel(pid, name, file, until, parent == 1)

    def forget(self, fake):
        fake.store.clear()

    def replace_model(self, fake, name):
        fake._next_pid += 1
        fake.store[name], fake.loaded[name] = FOREIGN_FILE, fake._next_pid
        fake.held[fake._next_pid] = FOREIGN_FILE, fake.pid

    def repair(self, fake):
        fake.store = {name: file for name, file in fake.store.items() if file != FOREIGN_FILE}

    def is_changed(self, fake):
        return FOREIGN_FILE in fake.store.values()

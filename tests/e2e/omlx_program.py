"""`omlx serve` with its documented API, as a process: it finds the models in a folder and holds real memory for them.

Its API is that of `tests/programs/daemon_engine/fake_omlx.py`. A test controls it by files in the folder that
`FAKE_OMLX` names: with a file `lies`, it keeps memory that it reports as released.
"""

import argparse
import os
import sys
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import trio  # noqa: E402

from llmkube.base.http.server import run_server  # noqa: E402
from programs.daemon_engine.fake_omlx import FakeOmlx  # noqa: E402

SIZE = 96 * 1024**2
"""Bytes that a model occupies."""


class RealOmlx(FakeOmlx):
    """A fake oMLX whose models occupy memory of this process."""

    def put(self, name):
        super().put(name)
        self.memory[name] = bytearray(os.urandom(1 << 20) * (SIZE >> 20))  # random, so that no page is shared

    def drop(self, name):
        super().drop(name)
        if not self.lies:
            self.memory.pop(name, None)

    @property
    def lies(self):
        return (Path(os.environ["FAKE_OMLX"]) / "lies").exists()

    @lies.setter
    def lies(self, value):
        pass


def install(folder):
    """Write the program into a folder and return its path; its processes have the name of oMLX's."""
    path = folder / "omlx"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__)} "$@"\n')
    path.chmod(0o755)
    return path


async def serve(args):
    folders = (file.parent for file in sorted(Path(args.model_dir).glob("*/config.json")))
    models = {folder.name: str(folder) for folder in folders}
    key = os.environ.get("OMLX_API_KEY", "")
    fake = RealOmlx(folders=models, sizes=dict.fromkeys(models, SIZE), key=key, load_seconds=0.2, lag_seconds=0.0)
    fake.memory = {}
    if args.base_path:
        (Path(args.base_path) / "logs").mkdir(parents=True)
    listeners = await trio.open_tcp_listeners(args.port, host=args.host)
    await run_server(fake.handle, listeners)


def main():
    if sys.argv[1:] in (["--help"], ["--version"]):
        sys.stdout.write("usage: omlx {serve,launch}" if sys.argv[1:] == ["--help"] else "0.6.3")
        return
    parser = argparse.ArgumentParser("omlx")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--model-dir", required=True)
    parser.add_argument("--base-path")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--no-cache", action="store_true")
    parser.add_argument("--max-concurrent-requests", type=int)
    trio.run(partial(serve, parser.parse_args()))


if __name__ == "__main__":
    main()

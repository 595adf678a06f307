"""Allocations that a real llama.cpp reports, for files of many shapes under many command lines.

Run as a program, this file loads each case once and writes `tests/weights/data/llama_buffers.json`, from which the
tests of the estimate take their truth without an engine. The engine is the CPU build in the xllamacpp wheel.
"""

import importlib.metadata
import itertools
import json
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import attrs
import psutil
import trio

from shapes import SHAPES
from shapes.hollow import Model

GOLDEN: Final = Path(__file__).resolve().parent.parent / "tests" / "weights" / "data" / "llama_buffers.json"
COMMON: Final = ("--fit", "off", "--no-warmup", "--verbosity", "4", "--port", "0", "--threads", "2")
STOP_SECONDS: Final = 10  # to be gone after SIGKILL, with the memory of a large model
LOAD_SECONDS: Final = 120  # far beyond any load that ends
REPORTED: Final = re.compile(r"(\S+) +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")
"""A line of llama.cpp's log: where a buffer is, what it is for, its size (as of b7000 to b11549)."""


@attrs.frozen
class Case:
    """One file under one command line."""

    shape: str
    mix: str
    flags: str

    @property
    def name(self) -> str:
        """All of it in one line."""
        return f"{self.shape} {self.mix} {self.flags}"

    @property
    def argv(self) -> list[str]:
        """The flags, one by one."""
        return self.flags.split()


@attrs.frozen
class Loaded:
    """The engine's report, by `<where> <what>`, and the actual memory of the process."""

    buffers: dict[str, int]
    pss_bytes: int
    file_bytes: int


# A load touches what it maps and clears its KV cache, so no case needs more than 8 GiB. `slim` shapes have fewer layers
# or experts than the published model, which changes no size per layer.
CASES: Final = tuple(
    Case(*line.split(maxsplit=2))
    for line in """
        llama-3.1-8b         Q4_K_M  -c 4096 --no-repack
        llama-3.1-8b         Q4_K_M  -c 16384 -np 4 --no-repack
        llama-3.1-8b         Q4_0    -c 8192 -ctk q8_0 -ctv q8_0 --no-repack
        llama-3.2-1b         Q4_0    -c 8192
        llama-3.2-1b         Q4_K_M  -c 8192
        llama-3.2-1b         Q8_0    -c 8192
        llama-3.2-1b         Q4_K_M  -c 8192 -lm none
        llama-3.2-1b         Q4_K_M  -c 131072 --no-repack
        llama-3.2-1b         Q4_K_M  -c 131072 -ctk q4_0 -ctv q4_0 --no-repack
        llama-3.2-1b         Q4_K_M  -c 32768 -fa off --no-repack
        llama-3.2-1b         Q4_K_M  -c 16384 -np 4 -fa off -ctk q8_0 --no-repack
        llama-3.2-1b         Q4_K_M  -c 16384 -np 4 -kvu -ub 2048 --no-repack
        llama-3.2-1b         F16     -c 4096 -ub 2048
        llama-tiny           Q4_0    -c 4096
        mistral-7b           Q4_0    -c 8192 -np 4 -kvu --no-repack
        mixtral-slim         Q4_0    -c 4096 --no-repack
        qwen2-0.5b           Q8_0    -c 32768 -fa off
        qwen2-0.5b           Q8_0    -c 8192 -np 2 --embeddings --pooling last
        qwen2-7b             Q4_K_M  -c 32768 -np 4 -ctk q8_0 -ctv q8_0 --no-repack
        qwen3-4b             Q4_K_M  -c 16384 --no-repack
        qwen3-4b             Q4_K_M  -c 40960 -np 4 -ctk q4_0 -ctv q4_0
        qwen3-moe-slim       Q4_K_M  -c 16384
        qwen3-moe-slim       Q4_K_M  -c 131072 -ctk q8_0 -ctv q8_0 -ub 2048 --no-repack
        gemma-2b             Q8_0    -c 8192
        gemma2-9b            Q4_K_M  -c 8192 --no-repack
        gemma3-1b            Q4_K_M  -c 2048 -np 4
        gemma3-1b            Q4_K_M  -c 32768 -np 4
        gemma3-1b            Q4_K_M  -c 32768 -np 4 -kvu
        gemma3-1b            Q4_K_M  -c 16384 -np 4 -ub 2048
        gemma3-4b            Q4_K_M  -c 32768 --no-repack
        gemma3-4b            Q4_K_M  -c 8192 --swa-full --no-repack
        gemma3-4b            Q4_K_M  -c 131072 -ctk q8_0 -ctv q8_0 --no-repack
        cohere2-7b           Q4_K_M  -c 16384 --no-repack
        gpt-oss-slim         MXFP4   -c 32768
        gpt-oss-slim         MXFP4   -c 131072 -np 4 -ub 2048 --no-repack
        deepseek-v2-slim     Q4_K_M  -c 16384 --no-repack
        deepseek-v2-slim     Q4_K_M  -c 16384 -fa off --no-repack
        deepseek-v2-slim     Q4_K_M  -c 65536 -ctk q8_0 -ctv q8_0 --no-repack
        deepseek-v2-slim-old Q4_K_M  -c 8192 --no-repack
        deepseek-v3-slim     Q4_K_M  -c 16384 --no-repack
        mamba-1.4b           Q4_K_M  -c 4096 -np 4
        mamba2-1.3b          Q4_K_M  -c 4096 -np 4
        jamba-3b             Q4_K_M  -c 16384 -np 4 --no-repack
        nemotron-h-8b        Q4_K_M  -c 16384 -np 4 --no-repack
        granite-h-micro      Q4_K_M  -c 16384 -np 4
        lfm2-1.2b            Q4_0    -c 16384 -np 4
        qwen3-next-slim      Q4_K_M  -c 16384 -np 2 --no-repack
        qwen3.5-4b           Q4_K_M  -c 16384 -np 2
        falcon-h1-1.5b       Q4_K_M  -c 16384 -np 4
        llama4-slim          Q4_K_M  -c 32768 --no-repack
        glm4-moe-slim        Q4_K_M  -c 16384
        gemma3n-e2b          Q4_K_M  -c 16384
        gemma4-slim          Q4_K_M  -c 32768 --no-repack
        phi3-mini-4k         Q4_K_M  -c 4096 --no-repack
        starcoder2-3b        Q8_0    -c 16384
        bert-large           F16     -c 512 --embeddings
        bert-large           F16     -c 2048 -np 4 --embeddings
        t5-large-encoder     Q8_0    -c 512 --embeddings
        t5-large-encoder     Q8_0    -c 1024 -fa off
        eurobert-210m        Q8_0    -c 2048 -np 4 --embeddings -ub 2048
        embeddinggemma-300m  Q8_0    -c 2048 -np 4 --embeddings -ub 2048
        embeddinggemma-300m  Q8_0    -c 512 -fa off
        dream-slim           Q4_K_M  -c 4096 --no-repack
        dream-slim           Q4_K_M  -c 2048 --embeddings --no-repack
        llada-slim           Q4_K_M  -c 4096 -np 2 --no-repack
        llada-moe-slim       Q4_K_M  -c 4096 --no-repack
        rnd1-slim            Q4_K_M  -c 4096 -fa off --no-repack
    """.strip().splitlines()
)


def drawn(count: int, rng: random.Random) -> list[Case]:
    """Return random cases, of models that load in a few seconds."""
    small = ("llama-tiny", "llama-3.2-1b", "gemma3-1b", "qwen2-0.5b", "lfm2-1.2b", "falcon-h1-1.5b", "mamba2-1.3b")
    found = []
    for at in range(count):
        flags = [f"-c {rng.choice((1000, 4096, 12288, 20000, 65536))} -np {rng.choice((1, 2, 3, 8))}"]
        flags.append(f"-ub {rng.choice((128, 256, 512, 2048))} -ctk {rng.choice(('f16', 'q8_0', 'q4_0'))}")
        # Without flash attention the V cache cannot be quantized
        flags.append(rng.choice(("-fa off", "-fa on", "-fa on -ctv q8_0", "-fa on -ctv q4_0")))
        flags.append(rng.choice(("", "-kvu", "--swa-full", "--no-repack", "-lm none")))
        mix = rng.choice(("Q2_K", "Q3_K", "Q4_0", "Q4_K_M", "Q5_K", "Q6_K", "Q8_0", "IQ4_NL", "BF16"))
        found.append(Case(small[at % len(small)], mix, " ".join(" ".join(flags).split())))
    return found


async def load(case: Case, folder: Path) -> Loaded:
    """Write the file, load it as llama-server does, and return what was reported and measured.

    Raises:
        RuntimeError: The engine exited, or printed nothing for too long; with its output.
    """
    path = folder / "model.gguf"
    SHAPES[case.shape].write(path, case.mix)
    # Nobody who works on the same machine should notice
    argv = [
        "nice",
        "-n",
        "5",
        sys.executable,
        "-m",
        "llmkube.programs.bundled_engine.llama_server",
        "--model",
        str(path),
    ]
    process = await trio.lowlevel.open_process([*argv, *case.argv, *COMMON], stdout=-1, stderr=-2)
    assert process.stdout is not None, "it was given a pipe"
    output = b""
    try:
        with trio.move_on_after(LOAD_SECONDS):
            while b": serving " not in output and (chunk := await process.stdout.receive_some()):
                output += chunk
        if b": serving " not in output:
            errors = [line for line in output.decode("utf-8", "replace").splitlines() if " E " in line]
            raise RuntimeError(f"{case.name} does not load: {' / '.join(errors[:3]) or 'no reason given'}")
        if sys.platform != "linux":
            raise RuntimeError("only Linux tells proportional sizes")
        pss = psutil.Process(process.pid).memory_full_info().pss
    finally:
        process.kill()
        with trio.move_on_after(STOP_SECONDS, shield=True):
            await process.wait()
        size = path.stat().st_size
        path.unlink()
    buffers: dict[str, int] = {}
    for where, what, mebibytes in REPORTED.findall(output.decode("utf-8", "replace")):
        buffers[f"{where} {what}"] = buffers.get(f"{where} {what}", 0) + round(float(mebibytes) * 2**20)
    return Loaded(buffers, pss, size)


def described(model: Model, mix: str) -> dict[str, Any]:
    """Return a model for the golden file: its tensors as [name, sizes, type, first block, last block]."""
    return {
        "architecture": model.architecture,
        "keys": dict(model.keys),
        "vocabulary": model.vocabulary,
        "tensors": list(_runs(model, mix)),
    }


def _runs(model: Model, mix: str) -> Iterator[list[Any]]:
    rows: dict[tuple[Any, ...], list[int]] = {}
    for name, sizes in model.tensors:
        found = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        row = (f"blk.*.{found[2]}" if found else name, sizes, model.kind(name, sizes, mix))
        rows.setdefault(row, []).extend([int(found[1])] if found else [])
    for (name, sizes, kind), blocks in rows.items():
        if not blocks:
            yield [name, list(sizes), kind, None, None]
        for _, run in itertools.groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
            numbers = [block for _, block in run]
            yield [name, list(sizes), kind, numbers[0], numbers[-1]]


async def record(cases: Sequence[Case]) -> None:
    """Write the golden file."""
    models: dict[str, Any] = {}
    found = []
    with TemporaryDirectory() as folder:
        for case in cases:
            loaded = await load(case, Path(folder))
            print(f"{case.name}: {loaded}", flush=True)
            name = f"{case.shape} {case.mix}"
            models[name] = described(SHAPES[case.shape], case.mix) | {"file_bytes": loaded.file_bytes}
            found.append({"model": name, "flags": case.argv, "buffers": loaded.buffers, "pss_bytes": loaded.pss_bytes})
    engine = f"xllamacpp {importlib.metadata.version('xllamacpp')}"
    GOLDEN.parent.mkdir(exist_ok=True)
    rows = [f'"engine": {json.dumps(engine)}']
    rows.append('"models": {\n' + ",\n".join(f"{json.dumps(n)}: {json.dumps(m)}" for n, m in models.items()) + "\n}")
    rows.append('"cases": [\n' + ",\n".join(map(json.dumps, found)) + "\n]")
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")


if __name__ == "__main__":
    trio.run(record, [case for case in CASES if not sys.argv[1:] or case.name.startswith(tuple(sys.argv[1:]))])

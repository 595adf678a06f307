"""Hostile GGUF files: each at one of the reader's limits, or far beyond."""

import struct

import gguf_bytes as g
from llmkube.weights.formats.gguf_reader import MAX_HEADER_BYTES, MAX_KEYS, MAX_SKIPPED_STRINGS, MAX_TENSORS


def hostile_files(folder, *, large=True):
    """Write the files that cost a reader most, and return their paths by title; `large` adds one of 256 MiB."""
    zeros = bytes(8)
    cases = {
        "array of 2^61 numbers": (g.header(g.ARCHITECTURE, g.array_head("x", g.U32, 2**61)), 0),
        "array of 2^61 strings": (g.header(g.ARCHITECTURE, g.array_head("x", g.STRING, 2**61)), 1 << 30),
        "arrays in arrays": (g.header(g.ARCHITECTURE, *[g.array_head("x", g.ARRAY, 1)] * 100_000), 1 << 30),
        "a string beyond the file": (
            g.header(g.ARCHITECTURE, g.text("x") + struct.pack("<IQ", g.STRING, 2**62)),
            1 << 30,
        ),
        "2^61 keys": (g.header(key_count=2**61), 1 << 30),
        f"{MAX_KEYS} keys": (g.header(*(g.key(f"{number:0>64}", g.U8, 0) for number in range(MAX_KEYS))), 0),
        f"{MAX_SKIPPED_STRINGS} empty strings": (
            g.header(g.ARCHITECTURE, g.array_head("x", g.STRING, MAX_SKIPPED_STRINGS) + zeros * MAX_SKIPPED_STRINGS),
            0,
        ),
        f"{MAX_TENSORS} tensors": (
            g.header(
                g.ARCHITECTURE,
                tensors=[g.tensor(f"{number:0>63}", [8], offset=32 * number) for number in range(MAX_TENSORS)],
            ),
            1 << 30,
        ),
        "200 architectures of 65,000 layers": (
            g.header(*(g.array(f"a{number}.block_count", g.U8, [1] * 65_000) for number in range(200))),
            0,
        ),
    }
    if large:
        strings = g.array_head("x", g.STRING, MAX_SKIPPED_STRINGS) + g.text(bytes(120)) * (MAX_HEADER_BYTES // 128)
        cases[f"{MAX_HEADER_BYTES >> 20} MiB of strings"] = (g.header(g.ARCHITECTURE, strings), 1 << 30)
    paths = {}
    for name, (data, size) in cases.items():
        path = paths[name] = folder / f"hostile{len(paths)}.gguf"
        with path.open("wb") as file:
            file.write(data)
            file.truncate(max(size, len(data)))
    return paths

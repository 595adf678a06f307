"""What an earlier program has fetched is taken over, and not one byte of it is asked for again."""

import hashlib

import pytest
import trio

from llmkube.programs.fetch_job.adoption import adopt
from llmkube.weights.source import parse_source
from llmkube.weights.store.blobs import WeightsFile, open_store
from llmkube.weights.store.index import find_weights, name_of

WEB = parse_source("https://example.com/Model-Q4_K_M.gguf")
HUB = parse_source("hf://org/repo/sub/Model-Q4_K_M.gguf")
SPLIT = parse_source("hf://org/repo/m-00001-of-00002.gguf")
BYTES = b"GGUF" + bytes(1000)
DIGEST = hashlib.sha256(BYTES).hexdigest()


async def taken(tmp_path, source, names, sha256=None):
    """What the store has of a source after the adoption from a folder with these files."""
    folder, store = tmp_path / "models" / "old", open_store(tmp_path / "models" / ".store")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(BYTES)
    limiter = trio.CapacityLimiter(2)
    await adopt(folder, source, store, sha256=sha256, progress=lambda _: None, limiter=limiter)
    return find_weights(store, name_of(store, source))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (WEB, ["a-name-of-its-own.gguf"]),
        (HUB, ["sub/Model-Q4_K_M.gguf"]),
        (HUB, ["Model-Q4_K_M.gguf"]),
        (SPLIT, ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]),
    ],
)
async def test_weights_of_an_earlier_cache_are_those_of_the_source(tmp_path, source, names):
    """The store has them by the source's name, as the very file that was there."""
    found = await taken(tmp_path, source, names)
    assert isinstance(found, WeightsFile)
    assert found.path.read_bytes() == BYTES
    if len(names) == 1:
        assert found.path.stat().st_ino == (tmp_path / "models" / "old" / names[0]).stat().st_ino


@pytest.mark.parametrize(
    ("source", "names", "sha256"),
    [
        (WEB, [], None),
        (WEB, ["one.gguf", "two.gguf"], None),
        (WEB, ["model.gguf.tmp"], None),
        (WEB, ["model.gguf"], "0" * 64),
        (HUB, ["another.gguf"], None),
        (SPLIT, ["m-00001-of-00002.gguf"], None),
    ],
)
async def test_what_cannot_be_told_to_be_the_source_is_not_taken(tmp_path, source, names, sha256):
    """Nothing, several, half a download, another digest, another file, a part: the store has nothing then."""
    assert await taken(tmp_path, source, names, sha256) is None


async def test_the_digest_that_is_asked_for_is_enough(tmp_path):
    """A file of the right digest is taken."""
    assert isinstance(await taken(tmp_path, WEB, ["x.gguf"], DIGEST), WeightsFile)

"""Repositories of the hub: what is asked, which file is chosen, and what the hub's own promises are worth."""

import hashlib
import json

import pytest

from llmkube.weights.download.hugging_face import (
    Choice,
    choose,
    entries_of,
    file_url,
    folder_entries,
    listing_url,
    parse_endpoint,
    parse_listing,
)
from llmkube.weights.errors import (
    AccessDeniedError,
    AmbiguousSourceError,
    DigestMismatchError,
    FetchError,
    SourceNotFoundError,
    WeightsError,
    WrongSizeError,
)
from llmkube.weights.http_responses import Validator
from llmkube.weights.source import HubFile, HubFolder, HubRepository, parse_source
from llmkube.weights.store.index import key_of
from llmkube.weights.store.partial import PartialInfo, open_partial
from weights.hostile import answers, gguf, open_bench, steps

COMMIT = "c" * 40
DATA = gguf(5000)
SHA256 = hashlib.sha256(DATA).hexdigest()
PARTS = {f"q4/m-{number:05d}-of-00003.gguf": gguf(3000 + number, seed=number) for number in (1, 2, 3)}


def sibling(path, data=None):
    entry = {"rfilename": path}
    if data is not None:
        entry |= {"size": len(data), "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}
    return entry


def listing(files):
    return json.dumps({"sha": COMMIT, "siblings": [sibling(path, data) for path, data in files.items()]}).encode()


def hub(files, *, moved=()):
    """A hub that serves its files itself; `moved` ones with other bytes than it promises."""

    async def script(wire, request):
        path = request.target.partition("?")[0]
        if path.startswith("/api/"):
            return await wire.answer(200, listing(files))
        name = path.partition("/resolve/")[2].partition("/")[2]
        data = files[name]
        digest = hashlib.sha256(data).hexdigest()
        served = gguf(len(data), seed=99) if name in moved else data
        etag = hashlib.sha256(served).hexdigest()
        promises = {"x_linked_etag": f'"{digest}"', "x_linked_size": len(data)}
        await wire.head(200, content_length=len(served), etag=f'"{etag}"', **promises)
        await wire.send(served)
        return None

    return script


def test_urls_are_those_of_the_hub():
    """Revisions and paths are escaped into the hub's URLs; a mirror below a path keeps it."""
    hub_url = parse_endpoint("https://huggingface.co/")
    file = HubFile("o/r", "a b/c#.gguf", "refs/pr/1")
    assert str(file_url(hub_url, file)) == "https://huggingface.co/o/r/resolve/refs%2Fpr%2F1/a%20b/c%23.gguf"
    assert str(listing_url(hub_url, "o/r", "main")) == "https://huggingface.co/api/models/o/r/revision/main?blobs=true"
    mirror = parse_endpoint("http://mirror:8080/hf")
    assert str(file_url(mirror, HubFile("o/r", "a.gguf"))) == "http://mirror:8080/hf/o/r/resolve/main/a.gguf"


def test_the_only_model_is_chosen():
    """A repository with one model needs no file name; projectors and matrices are no models."""
    files = {"README.md": None, "m.gguf": DATA, "mmproj-m.gguf": DATA, "imatrix.gguf": DATA}
    found = parse_listing("x", listing(files))
    assert choose(HubRepository("o/r", "v1"), found) == Choice(HubFile("o/r", "m.gguf", "v1"))
    found = parse_listing("x", listing(PARTS))
    assert choose(HubRepository("o/r"), found).file.parts == tuple(PARTS)


def test_several_models_are_listed_with_their_sizes():
    """When there is a choice, the error names each, and how to write one of them."""
    found = parse_listing("x", listing({"a-Q4.gguf": DATA, "b.gguf": None, **PARTS}))
    with pytest.raises(AmbiguousSourceError) as caught:
        choose(HubRepository("o/r", "v1"), found)
    words = str(caught.value)
    assert "3 models" in words
    assert "a-Q4.gguf (4.9 KiB)" in words
    assert "b.gguf (size unknown)" in words
    assert "q4/m-00001-of-00003.gguf (8.8 KiB)" in words
    assert "hf://o/r/a-Q4.gguf@v1" in words
    assert caught.value.field == "spec.source"


SPLIT = {f"Q8_0/m-Q8_0-{number:05d}-of-00002.gguf": gguf(100, seed=number) for number in (1, 2)}
SEVERAL = {"m-Q2_K.gguf": DATA, "m-Q4_K_M.gguf": DATA, "m-UD-Q4_K_M.gguf": DATA, "mmproj-m-F16.gguf": DATA, **SPLIT}


@pytest.mark.parametrize(
    ("quantization", "file"),
    [
        ("", "m-Q4_K_M.gguf"),
        ("Q4_K_M", "m-Q4_K_M.gguf"),
        ("q2_k", "m-Q2_K.gguf"),
        ("UD-Q4_K_M", "m-UD-Q4_K_M.gguf"),
        ("Q8_0", "Q8_0/m-Q8_0-00001-of-00002.gguf"),
    ],
)
def test_a_quantization_is_found_among_several(quantization, file):
    """The one that is named comes, parts together and no projector; without a name Q4_K_M, and it is said."""
    chosen = choose(HubRepository("o/r", quantization=quantization), parse_listing("x", listing(SEVERAL)))
    assert chosen.file.path == file
    assert chosen.reason == ("" if quantization else "Q4_K_M, one of 4 in o/r")
    assert len(chosen.file.parts) == (2 if quantization == "Q8_0" else 1)


@pytest.mark.parametrize("files", [SEVERAL, {"m-Q2_K.gguf": DATA}])
def test_a_quantization_that_is_not_there_lists_what_is(files):
    """A wrong name never leads to another file, not even to the only one."""
    with pytest.raises(SourceNotFoundError, match=r"has no Q3_K_S; it has .*m-Q2_K\.gguf \(4\.9 KiB\)"):
        choose(HubRepository("o/r", quantization="Q3_K_S"), parse_listing("x", listing(files)))


@pytest.mark.parametrize(
    "files",
    [{"a-Q4_K_M.gguf": DATA, "b-Q8_0.gguf": DATA}, {"m-Q2_K.gguf": DATA, "m-Q8_0.gguf": DATA}],
    ids=["two models", "no Q4_K_M"],
)
@pytest.mark.parametrize("memory_bytes", [None, 5000])
def test_what_nobody_can_choose_is_left_to_the_user(files, memory_bytes):
    """Of two different models, or without a Q4_K_M where the memory is unknown or small, none is taken unasked."""
    with pytest.raises(AmbiguousSourceError, match="has 2 models; choose one"):
        choose(HubRepository("o/r"), parse_listing("x", listing(files)), memory_bytes=memory_bytes)


SIZES = {"m-Q2_K.gguf": bytes(900), "m-Q5_K_M.gguf": bytes(1800), "m-Q8_0.gguf": bytes(1801), "m-F16.gguf": bytes(9000)}


def test_without_the_usual_one_the_largest_that_fits_comes():
    """A tenth of the memory is left for context and buffers; what was chosen and why is said."""
    chosen = choose(HubRepository("o/r"), parse_listing("x", listing(SIZES)), memory_bytes=2000)
    assert chosen.file.path == "m-Q5_K_M.gguf"
    assert chosen.reason == "Q5_K_M, the largest of 4 in o/r that fits into 2.0 KiB of memory; it has no Q4_K_M"
    two = SIZES | {"other-Q2_K.gguf": bytes(10)}
    with pytest.raises(AmbiguousSourceError, match="has 5 models; choose one"):
        choose(HubRepository("o/r"), parse_listing("x", listing(two)), memory_bytes=2000)


async def test_the_choice_is_said_while_it_comes(tmp_path, autojump_clock):
    """Whoever reads the progress of a download learns which quantization it is, and so does who has the file."""
    async with open_bench(tmp_path, hub(SEVERAL)) as bench:
        found = await bench.get("o/r")
        assert found.choice == "Q4_K_M, one of 4 in o/r"
        assert (await bench.get("o/r")).choice == found.choice  # from the store as well
        assert "(Q4_K_M, one of 4 in o/r)" in str([one for one in bench.seen if one.stage == "downloading"][-1])


def test_a_repository_without_a_model_says_so():
    """Safetensors are no GGUF, and the error says what to look for."""
    with pytest.raises(SourceNotFoundError, match=r"has no \.gguf file"):
        choose(HubRepository("o/r"), parse_listing("x", listing({"model.safetensors": DATA, "../x.gguf": DATA})))


def test_a_missing_part_is_named():
    """A split model with a hole is refused."""
    some = dict(list(PARTS.items())[:2])
    with pytest.raises(SourceNotFoundError, match=r"no q4/m-00003-of-00003\.gguf, of 3 parts"):
        entries_of(HubFile("o/r", next(iter(PARTS))), parse_listing("x", listing(some)))


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b"{}", b'{"siblings": [1]}', b"[" * 5000, b'{"siblings": [{}]}'],
)
def test_a_listing_that_is_none_is_an_error(body):
    """Whatever the hub answers, it is a listing or a FetchError."""
    with pytest.raises(FetchError, match="cannot be decoded"):
        parse_listing("x", body)


def test_odd_values_in_a_listing_promise_nothing():
    """Sizes and digests that are none are left out."""
    body = json.dumps({"sha": 5, "siblings": [{"rfilename": "a", "size": -1, "lfs": {"sha256": "../x"}}]}).encode()
    found = parse_listing("x", body)
    assert (found.commit, found.files["a"].size_bytes, found.files["a"].sha256) == ("", None, None)


async def test_one_file_takes_one_question(tmp_path, autojump_clock):
    """A named file is fetched without a listing, verified against the hub's digest, with the token."""
    async with open_bench(tmp_path, hub({"m.gguf": DATA})) as bench:
        kept = await bench.get("hf://o/r/m.gguf", token="t0ken")
        assert kept.sha256 == SHA256
        [request] = bench.network.requests
        assert request.target == "/o/r/resolve/main/m.gguf"
        assert request.headers["authorization"] == "Bearer t0ken"


@pytest.mark.parametrize("text", ["hf://o/r", "o/r@v1"])
async def test_a_repository_is_listed_and_pinned(tmp_path, autojump_clock, text):
    """A bare repository leads to its model at the listed commit, and starts offline ever after."""
    async with open_bench(tmp_path, hub({"m.gguf": DATA, "README.md": None})) as bench:
        kept = await bench.get(text)
        assert kept.path.read_bytes() == DATA
        revision = parse_source(text).revision
        assert [request.target for request in bench.network.requests] == [
            f"/api/models/o/r/revision/{revision}?blobs=true",
            f"/o/r/resolve/{COMMIT}/m.gguf",
        ]
        assert await bench.get(text) == kept
        assert len(bench.network.requests) == 2


async def test_the_hubs_digest_catches_a_damaged_file(tmp_path, autojump_clock):
    """Without any spec.sha256, a file that is not what the hub promises is refused, with both digests."""
    async with open_bench(tmp_path, hub({"m.gguf": DATA}, moved=["m.gguf"])) as bench:
        with pytest.raises(DigestMismatchError, match=f"the hub's is {SHA256}") as caught:
            await bench.get("hf://o/r/m.gguf")
        assert caught.value.field == ""
        assert bench.files() == []


async def test_bytes_that_an_earlier_life_completed_are_verified_all_the_same(tmp_path, autojump_clock):
    """A file that was complete but not yet verified when the agent died is held against the hub's digest."""
    damaged = gguf(len(DATA), seed=7)

    async def script(wire, request):
        if request.start is None:
            return await hub({"m.gguf": DATA})(wire, request)
        return await wire.answer(
            416, content_range=f"bytes */{len(DATA)}", x_linked_etag=f'"{SHA256}"', x_linked_size=len(DATA)
        )

    async with open_bench(tmp_path, script) as bench:
        for data in (damaged, DATA):
            left = open_partial(bench.store, key_of("hf://o/r/m.gguf@main"))
            left.begin(PartialInfo(Validator('"v1"'), len(DATA)))
            left.append(data)
            left.close()
            assert (await bench.get("hf://o/r/m.gguf")).path.read_bytes() == DATA
            for path in [*bench.store.index.iterdir(), *bench.store.blobs.iterdir()]:
                path.unlink()
        assert [request.start for request in bench.network.requests] == [len(DATA), None, len(DATA)]


async def test_the_hubs_size_is_checked_before_the_first_byte(tmp_path, autojump_clock):
    """A length that is not the hub's is refused."""
    script = answers(200, DATA, x_linked_etag=f'"{SHA256}"', x_linked_size=len(DATA) + 1)
    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(WrongSizeError, match="should have 5001 bytes, the server sends 5000"):
            await bench.get("hf://o/r/m.gguf")
        assert bench.files() == []


async def test_a_digest_that_the_hub_contradicts_costs_no_download(tmp_path, autojump_clock):
    """When the hub names another digest than spec.sha256, that is said at once, for files and repositories."""
    async with open_bench(tmp_path, hub({"m.gguf": DATA})) as bench:
        for text in ("hf://o/r/m.gguf", "hf://o/r"):
            with pytest.raises(DigestMismatchError, match=f".*{SHA256}.*spec.sha256 is {'0' * 64}"):
                await bench.get(text, sha256="0" * 64)
        assert len(bench.network.requests) == 2
        assert bench.files() == []


async def test_the_parts_of_a_model_lie_side_by_side(tmp_path, autojump_clock):
    """A split model is complete in one folder, under the names by which llama.cpp finds the parts from the first."""
    async with open_bench(tmp_path, hub(PARTS)) as bench:
        kept = await bench.get("hf://o/r/q4/m-00002-of-00003.gguf")
        assert kept.path.name == "model-00001-of-00003.gguf"
        assert [path.read_bytes() for path in sorted(kept.path.parent.iterdir())] == list(PARTS.values())
        assert kept.size_bytes == sum(map(len, PARTS.values()))
        assert kept.sha256 is None
        assert bench.seen[-1].total_bytes == bench.seen[-1].done_bytes == kept.size_bytes
        assert await bench.get("hf://o/r/q4/m-00001-of-00003.gguf") == kept


async def test_all_parts_or_none(tmp_path, autojump_clock):
    """While one part fails, no part can be seen; what has come is kept, and only the rest is fetched next time."""
    script = hub(PARTS, moved=["q4/m-00003-of-00003.gguf"])
    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(DigestMismatchError):
            await bench.get("hf://o/r/q4/m-00001-of-00003.gguf")
        assert bench.visible() == []
        bench.network.script = hub(PARTS)
        before = len(bench.network.requests)
        await bench.get("hf://o/r/q4/m-00001-of-00003.gguf")
        asked = [request.target for request in bench.network.requests[before + 1 :]]
        assert asked == [f"/o/r/resolve/{COMMIT}/q4/m-00003-of-00003.gguf"]


async def test_one_digest_cannot_describe_many_parts(tmp_path, autojump_clock):
    """spec.sha256 on a split model is refused with what to do."""
    async with open_bench(tmp_path, hub(PARTS)) as bench:
        with pytest.raises(WeightsError, match="cannot describe the 3 parts") as caught:
            await bench.get("hf://o/r", sha256="0" * 64)
        assert caught.value.field == "spec.sha256"


async def test_parts_on_a_web_server_are_looked_for_before_any_is_downloaded(tmp_path, autojump_clock):
    """A missing last part is known after a few bytes; with all there, the model is complete."""
    parts = {f"/d/m-{number:05d}-of-00002.gguf": gguf(2000, seed=number) for number in (1, 2)}

    async def script(wire, request):
        if request.target not in there:
            return await wire.answer(404)
        data = parts[request.target]
        if request.headers.get("range") == "bytes=0-3":
            return await wire.answer(206, data[:4], content_range=f"bytes 0-3/{len(data)}")
        return await wire.file(request, data)

    there = {"/d/m-00001-of-00002.gguf"}
    async with open_bench(tmp_path, script) as bench:
        with pytest.raises(SourceNotFoundError, match="m-00002-of-00002"):
            await bench.get("http://files.example/d/m-00001-of-00002.gguf")
        assert bench.files() == []
        assert len(bench.network.requests) == 2
        there.update(parts)
        kept = await bench.get("http://files.example/d/m-00001-of-00002.gguf")
        assert [path.read_bytes() for path in sorted(kept.path.parent.iterdir())] == list(parts.values())


async def test_a_gated_repository_says_how_to_give_a_token(tmp_path, autojump_clock):
    """Without a token, and with one that may not, the error names the Secret, its key and the field."""
    script = answers(401, x_error_code="GatedRepo", x_error_message="Access to model o/r is restricted.")
    async with open_bench(tmp_path, script) as bench:
        for text in ("hf://o/r/m.gguf", "hf://o/r"):
            with pytest.raises(AccessDeniedError, match=r"restricted.*HF_TOKEN.*spec\.sourceSecretRef"):
                await bench.get(text)
        with pytest.raises(AccessDeniedError, match="the token that was sent has no permission to read it") as caught:
            await bench.get("hf://o/r/m.gguf", token="t0ken")
        assert "t0ken" not in str(caught.value)


async def test_a_listing_is_asked_for_again(tmp_path, autojump_clock):
    """A rate limit on the hub's API is waited for, and a listing that breaks off is no listing."""
    limited = answers(429, ratelimit='"api";r=0;t=52')
    cut = answers(200, b'{"siblings": [', content_length=5000)
    async with open_bench(tmp_path, steps(limited, cut, hub({"m.gguf": DATA}))) as bench:
        assert (await bench.get("o/r")).path.read_bytes() == DATA


FOLDER_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": b"\x08" + bytes(3000),
    "model-00002-of-00002.safetensors": b"\x09" + bytes(4000),
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{ }",
    "chat_template.jinja": b"<|im_start|>{{ messages }}",
}
BESIDES = {
    "README.md": b"text",
    "modeling_evil.py": b"import os",
    "onnx/model.onnx": b"x",
    "consolidated.safetensors": b"x",
}


def of_folder(files, **more):
    """What the hub says of a repository of safetensors; it has digests of large files alone."""
    siblings = [
        sibling(path, data) if path.endswith(".safetensors") else {"rfilename": path, "size": len(data)}
        for path, data in files.items()
    ]
    return json.dumps({"sha": COMMIT, "siblings": siblings} | more).encode()


def folder_hub(files, *, moved=()):
    """A hub with such a repository; `moved` files break off in the middle."""

    async def script(wire, request):
        path = request.target.partition("?")[0]
        if path.startswith("/api/"):
            return await wire.answer(200, of_folder(files))
        name = path.partition("/resolve/")[2].partition("/")[2]
        data = files[name]
        await wire.head(200, content_length=len(data), etag=f'"{hashlib.sha256(data).hexdigest()}"')
        await wire.send(data[: len(data) // 2] if name in moved else data)
        return None

    return script


def test_the_files_of_a_folder():
    """Weights, configuration, tokenizer and template are taken; code, papers and other formats are not."""
    entries = folder_entries(HubFolder("o/r"), parse_listing("hf://o/r", of_folder(FOLDER_FILES | BESIDES)))
    assert [entry.path for entry in entries] == sorted(FOLDER_FILES)


@pytest.mark.parametrize("missing", ["config.json", "model"])
def test_a_repository_without_safetensors_is_no_folder(missing):
    """What is missing is named; where there is gguf, that is the way out."""
    files = {path: data for path, data in FOLDER_FILES.items() if not path.startswith(missing)} | {"m.gguf": b"GGUF"}
    with pytest.raises(SourceNotFoundError, match=r"config.json and model.*set Model.spec.format to gguf"):
        folder_entries(HubFolder("o/r"), parse_listing("hf://o/r", of_folder(files)))


@pytest.mark.parametrize("path", ["../model.safetensors", "sub/model.safetensors", "model\n.safetensors", ".json"])
def test_no_name_of_a_repository_leaves_the_folder(path):
    """What the hub says becomes the name of a file on this host: nothing but a plain name is taken."""
    entries = folder_entries(HubFolder("o/r"), parse_listing("x", of_folder(FOLDER_FILES | {path: b"x"})))
    assert path not in {entry.path for entry in entries}


async def test_a_folder_is_complete_or_not_there(tmp_path, autojump_clock):
    """One file breaks off for good: nothing is to be seen; what has come is kept, and only the rest is fetched."""
    lost = "model-00002-of-00002.safetensors"
    async with open_bench(tmp_path, folder_hub(FOLDER_FILES | BESIDES, moved=[lost])) as bench:
        with pytest.raises(FetchError):
            await bench.get("hf://o/r", weights_format="mlx")
        assert bench.visible() == []
        bench.network.script = folder_hub(FOLDER_FILES | BESIDES)
        kept = await bench.get("hf://o/r", weights_format="mlx")
        assert {path.name: path.read_bytes() for path in kept.path.iterdir()} == FOLDER_FILES
        assert kept.size_bytes == sum(map(len, FOLDER_FILES.values()))
        before = len(bench.network.requests)
        assert await bench.get("hf://o/r", weights_format="mlx") == kept
        assert len(bench.network.requests) == before  # what was fetched once starts offline
        with pytest.raises(WeightsError, match="cannot describe the files"):
            await bench.get("hf://o/other", weights_format="mlx", sha256="0" * 64)


async def test_another_name_of_the_same_bytes_is_another_folder(tmp_path, autojump_clock):
    """The identity that a plan is restarted for covers the names of the files, and not their bytes alone."""
    renamed = {
        ("tokenizer_config.json" if path == "tokenizer.json" else path): data for path, data in FOLDER_FILES.items()
    }
    async with open_bench(tmp_path, folder_hub(FOLDER_FILES)) as bench:
        kept = await bench.get("hf://o/r", weights_format="mlx")
        bench.network.script = folder_hub(renamed)
        other = await bench.get("hf://o/renamed", weights_format="mlx")
        assert kept.identity != other.identity
        assert {path.name for path in other.path.iterdir()} == set(renamed)

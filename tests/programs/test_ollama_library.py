"""The models of a host's Ollama, which is a fake: pulled once, with progress, refused by name."""

import json
import shutil
from functools import partial

import pytest
import trio

from gguf_corpus import DEMO
from llmkube.programs.daemon_engine import ollama_weights
from llmkube.programs.daemon_engine.ollama_api import OllamaApi
from llmkube.programs.daemon_engine.ollama_weights import free_bytes_near
from llmkube.programs.ollama_library import OllamaLibrary, local_ollama
from llmkube.weights.errors import (
    FetchError,
    NoSpaceError,
    NotGGUFError,
    SourceNotAllowedError,
    SourceNotFoundError,
    SourceRefusedError,
)
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.ollama_model import AllowedModels, OllamaModel
from programs.daemon_engine.fake_ollama import (
    LIBRARY_BLOB,
    URL,
    FakeDaemon,
    answers,
    blob_of,
    break_off,
    client_of,
    shown_header,
)

TINY = OllamaModel("tiny:latest")


def daemon(**changes):
    return FakeDaemon(shows={LIBRARY_BLOB: shown_header(DEMO)}, **changes)


def library(client, fake, *allowed):
    return OllamaLibrary(OllamaApi(client, URL), AllowedModels(allowed or ("*",)), free=fake.free)


async def test_a_model_is_pulled_once_with_progress(autojump_clock):
    """Its file is Ollama's, its facts are the header's, and the progress is in bytes."""
    fake, reported = daemon(), []
    async with client_of(fake) as client:
        models = library(client, fake)
        assert not await models.has(TINY)
        weights, facts = await models.fetch(TINY, reported.append)
        assert facts.shape.tensors == read_header(DEMO).shape.tensors
        assert weights.identity == f"ollama://tiny:latest@sha256:{weights.sha256}"
        assert weights.path.name == LIBRARY_BLOB
        assert [each.stage for each in reported[1:-1]] == ["downloading"] * 9
        assert str(reported[5]).startswith("downloading: 50 B of 100 B (50 %), 100 B/s, 0.50 s left")
        assert await models.has(TINY)
        assert await models.keeps(weights.identity)
        assert not await models.keeps(weights.identity[:-1])
        await models.fetch(TINY, reported.append)
    assert fake.calls.count("/api/pull") == 1


async def test_services_of_one_model_share_a_pull(autojump_clock):
    """The second one waits, and finds the model; after a failure the second one tries once more."""
    fake = daemon(faults={"/api/pull": [break_off]})
    failed = []
    async with client_of(fake) as client, trio.open_nursery() as nursery:
        models = library(client, fake)

        async def fetch():
            try:
                await models.fetch(TINY, lambda _: None)
            except FetchError as error:
                failed.append(str(error))

        for _ in range(5):
            nursery.start_soon(fetch)
    assert len(failed) == 1
    assert fake.calls.count("/api/pull") == 2


def error(message, status=500):
    return answers(status, json.dumps({"error": message}).encode())


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (error("pull model manifest: file does not exist", 404), SourceNotFoundError, "no tiny:latest: check name"),
        (error("pull model manifest: 412: this model requires a newer version"), SourceRefusedError, "upgrade Ollama"),
        (error("write /blobs: no space left on device"), FetchError, "failed to pull tiny:latest.*no space left"),
        (break_off, FetchError, "failed to pull tiny:latest"),
        (
            answers(200, b'{"status": "success"}\n'),
            FetchError,
            "reported that it pulled tiny:latest, but does not list",
        ),
    ],
)
async def test_a_failed_pull_names_the_model_and_the_fix(autojump_clock, fault, kind, message):
    """One attempt is one pull; the caller decides when to retry."""
    fake = daemon(faults={"/api/pull": [fault]})
    async with client_of(fake) as client:
        with pytest.raises(kind, match=message):
            await library(client, fake).fetch(TINY, lambda _: None)
    assert fake.calls.count("/api/pull") == 1


async def test_a_missing_ollama_is_reported_with_the_fix(autojump_clock, monkeypatch):
    """It may be started later; an Ollama on another machine is never used."""
    fake = daemon(answers=False)
    async with client_of(fake) as client:
        with pytest.raises(FetchError, match=r"does not respond at http://127.0.0.1:11434: start it .*OLLAMA_HOST"):
            await library(client, fake).fetch(TINY, lambda _: None)
        assert not await library(client, fake).has(TINY)
        monkeypatch.setenv("OLLAMA_HOST", "192.0.2.7")
        with pytest.raises(SourceRefusedError, match=r"ollama://tiny:latest: OLLAMA_HOST names http://192.0.2.7:11434"):
            await local_ollama(client, AllowedModels(("*",))).fetch(TINY, lambda _: None)


async def test_missing_facts_are_not_guessed(autojump_clock):
    """A server that is too old to report them has to be upgraded; the model is not pulled again."""
    fake = daemon(blobs={LIBRARY_BLOB})
    fake.shows = {}
    async with client_of(fake) as client:
        with pytest.raises(NotGGUFError, match="upgrade Ollama"):
            await library(client, fake).fetch(TINY, lambda _: None)
    assert fake.calls.count("/api/pull") == 0


async def test_a_forbidden_model_is_neither_pulled_nor_served(autojump_clock):
    """The message is the same whether or not Ollama has it; no request is sent to Ollama."""
    fake, reported = daemon(blobs={LIBRARY_BLOB}), []
    async with client_of(fake) as client:
        models = library(client, fake, "llama*", "me/*")
        for name in ("tiny:latest", "library/tiny:latest", "you/tiny:latest", "nothing:latest"):
            with pytest.raises(SourceNotAllowedError, match=f"--allow-ollama-sources {name} .*name the same") as caught:
                await models.fetch(OllamaModel(name), lambda _: None)
            reported.append(str(caught.value).replace(name, "NAME"))
            assert not await models.has(OllamaModel(name))
            assert not await models.keeps(f"ollama://{name}@{LIBRARY_BLOB.replace('-', ':')}")
    assert len(set(reported)) == 1
    assert fake.calls == []


MIB = 1 << 20


@pytest.mark.parametrize(
    ("layers", "free", "refused"),
    [
        ([100 * MIB], 106 * MIB, False),  # 5 % stay free
        ([100 * MIB], 104 * MIB, True),
        ([100 * MIB, 10 * MIB], 113 * MIB, True),  # the second one is known when it begins
        ([100 * MIB, 10 * MIB], 116 * MIB, False),
    ],
)
async def test_a_pull_that_would_fill_the_disk_ends_when_its_size_is_known(autojump_clock, layers, free, refused):
    """Before a tenth of it has arrived; the message has the bytes, the folder and two fixes."""
    fake = daemon(layers={"tiny:latest": layers}, free_bytes=free)
    async with client_of(fake) as client:
        models = library(client, fake)
        if not refused:
            await models.fetch(TINY, lambda _: None)
            return
        sizes = f"{int(sum(layers) * 1.05)} bytes needed, {free} bytes free"
        with pytest.raises(NoSpaceError, match=rf"no space in Ollama's models folder: .*{sizes}.*ollama rm"):
            await models.fetch(TINY, lambda _: None)
        await trio.sleep(60)
        assert fake.fetched_bytes <= sum(layers[:-1]) + layers[-1] // 10
        assert LIBRARY_BLOB not in fake.blobs


async def test_a_model_that_did_not_fit_is_not_pulled_to_learn_its_size_again(autojump_clock):
    """The size is remembered for ten minutes; once there is space for it, it is pulled at once."""
    fake = daemon(layers={"tiny:latest": [100 * MIB]}, free_bytes=50 * MIB)

    async def refused():
        with pytest.raises(NoSpaceError):
            await models.fetch(TINY, lambda _: None)

    async with client_of(fake) as client:
        models = library(client, fake)
        for seconds in (0, 30, 300):
            await trio.sleep(seconds)
            await refused()
        assert fake.calls.count("/api/pull") == 1
        await trio.sleep(300)
        await refused()
        assert fake.calls.count("/api/pull") == 2
        fake.free_bytes = 200 * MIB
        await models.fetch(TINY, lambda _: None)
        assert fake.calls.count("/api/pull") == 3


async def test_two_pulls_do_not_reserve_the_same_space(autojump_clock):
    """The second waits for the first, reports that, and then does not fit; a present model waits for no pull."""
    other = OllamaModel("other:latest")
    fake = daemon(layers={"tiny:latest": [100 * MIB], "other:latest": [90 * MIB]}, free_bytes=150 * MIB)
    fake.library["other:latest"] = blob_of(b"other")
    reported = []
    async with client_of(fake) as client, trio.open_nursery() as nursery:
        models = library(client, fake)
        nursery.start_soon(models.fetch, TINY, lambda _: None)
        await trio.sleep(0.3)
        with pytest.raises(NoSpaceError):
            await models.fetch(other, reported.append)
        assert (reported[0].stage, reported[0].note) == ("waiting", "Ollama is pulling another model")
        await models.fetch(TINY, lambda _: None)
    assert fake.free_bytes == 50 * MIB


@pytest.mark.parametrize(
    ("store", "environ", "folder"),
    [
        ({"mine:latest": LIBRARY_BLOB}, {"OLLAMA_MODELS": "/other"}, "/home/me"),
        ({}, {"OLLAMA_MODELS": "/srv/models"}, "/srv/models"),
        ({}, {"OLLAMA_MODELS": ""}, "/home/them/.ollama/models"),
    ],
)
async def test_the_free_space_is_that_of_the_models_disk(autojump_clock, monkeypatch, store, environ, folder):
    """The folder is the one where Ollama reports a model; without any, this user's default."""
    fake, sampled = daemon(store=store, sizes=dict.fromkeys(store, 1)), []
    for name, value in {"HOME": "/home/them", **environ}.items():
        monkeypatch.setenv(name, value)

    async def free(path):
        sampled.append(str(path))
        return await fake.free(path)

    async with client_of(fake) as client:
        await OllamaLibrary(OllamaApi(client, URL), AllowedModels(("*",)), free=free).fetch(TINY, lambda _: None)
    assert sampled == [folder]


async def test_a_missing_folder_is_measured_by_its_parent(tmp_path):
    """So is one that this user may not see."""
    assert 0 < await free_bytes_near(tmp_path / "not" / "there" / "yet") <= shutil.disk_usage(tmp_path).total


def counts_the_largest(self, text, done, total):
    self.needed_bytes = max(self.needed_bytes, total)
    ollama_weights.check_capacity(self.folder, self.needed_bytes, self.free_bytes)


allowed = test_a_forbidden_model_is_neither_pulled_nor_served
fits = test_a_pull_that_would_fill_the_disk_ends_when_its_size_is_known

BUGS = {
    "what does not fit is pulled": (
        *(ollama_weights, "check_capacity", lambda *_: None),
        partial(fits, layers=[100 * MIB], free=104 * MIB, refused=True),
    ),
    "nothing stays free": (
        *(ollama_weights, "margin_of", lambda _: 0),
        partial(fits, layers=[100 * MIB], free=104 * MIB, refused=True),
    ),
    "files are not added up": (
        *(ollama_weights.PullCapacity, "take", counts_the_largest),
        partial(fits, layers=[100 * MIB, 10 * MIB], free=113 * MIB, refused=True),
    ),
    "all models are allowed": (AllowedModels, "admits", lambda *_: True, allowed),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
async def test_a_mutant_is_noticed(autojump_clock, monkeypatch, name):
    """Each of these bugs has a test that fails with it."""
    owner, attribute, replacement, timeline = BUGS[name]
    monkeypatch.setattr(owner, attribute, replacement)
    with pytest.RaisesGroup(pytest.fail.Exception, flatten_subgroups=True):
        await timeline(autojump_clock)

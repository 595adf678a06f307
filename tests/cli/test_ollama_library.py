"""The models of a host's Ollama, which a script plays: pulled once, told with their progress, refused by name."""

import json

import pytest
import trio

from cli.daemon_engine.ollama.fake_daemon import LIBRARY_BLOB, URL, FakeDaemon, answers, breaks_off, shown_header
from cli.daemon_engine.ollama.test_program import playing
from gguf_corpus import DEMO
from llmkube.cli.daemon_engine.ollama.daemon_api import DaemonApi
from llmkube.cli.ollama_library import OllamaLibrary, ollama_here
from llmkube.weights.errors import FetchError, NotGGUFError, SourceNotFoundError, SourceRefusedError
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.ollama_model import OllamaModel

TINY = OllamaModel("tiny:latest")


def daemon(**changes):
    return FakeDaemon(shows={LIBRARY_BLOB: shown_header(DEMO)}, **changes)


def library(client):
    return OllamaLibrary(DaemonApi(client, URL))


async def test_a_model_is_pulled_once_and_told(autojump_clock):
    """Its file is Ollama's, its facts are the header's, and how far the pull is shows in bytes."""
    fake, told = daemon(), []
    async with playing(fake) as client:
        models = library(client)
        assert not await models.has(TINY)
        weights, facts = await models.fetch(TINY, told.append)
        assert facts.shape.tensors == read_header(DEMO).shape.tensors
        assert weights.identity == f"ollama://tiny:latest@sha256:{weights.sha256}"
        assert weights.path.name == LIBRARY_BLOB
        assert [each.stage for each in told[1:-1]] == ["downloading"] * 9
        assert str(told[5]).startswith("downloading: 50 B of 100 B (50 %), 100 B/s, 0.50 s left")
        assert await models.has(TINY)
        assert await models.keeps(weights.identity)
        assert not await models.keeps(weights.identity[:-1])
        await models.fetch(TINY, told.append)
    assert fake.calls.count("/api/pull") == 1


async def test_services_of_one_model_share_a_pull(autojump_clock):
    """Who comes second waits, and finds it there; who comes second after a failure tries once more."""
    fake = daemon(faults={"/api/pull": [breaks_off]})
    failed = []
    async with playing(fake) as client, trio.open_nursery() as nursery:
        models = library(client)

        async def fetch():
            try:
                await models.fetch(TINY, lambda _: None)
            except FetchError as error:
                failed.append(str(error))

        for _ in range(5):
            nursery.start_soon(fetch)
    assert len(failed) == 1
    assert fake.calls.count("/api/pull") == 2


def error(words, status=500):
    return answers(status, json.dumps({"error": words}).encode())


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (error("pull model manifest: file does not exist", 404), SourceNotFoundError, "no tiny:latest: look up name"),
        (error("pull model manifest: 412: this model requires a newer version"), SourceRefusedError, "upgrade Ollama"),
        (error("write /blobs: no space left on device"), FetchError, "has not pulled tiny:latest.*no space left"),
        (breaks_off, FetchError, "has not pulled tiny:latest"),
        (
            answers(200, b'{"status": "success"}\n'),
            FetchError,
            "says that it has pulled tiny:latest, and does not know",
        ),
    ],
)
async def test_a_pull_that_fails_names_the_model_and_the_way_out(autojump_clock, fault, kind, words):
    """One attempt is one pull; the caller decides when to ask again."""
    fake = daemon(faults={"/api/pull": [fault]})
    async with playing(fake) as client:
        with pytest.raises(kind, match=words):
            await library(client).fetch(TINY, lambda _: None)
    assert fake.calls.count("/api/pull") == 1


async def test_without_an_ollama_the_way_to_one_is_told(autojump_clock, monkeypatch):
    """It may be started later; one on another machine never is what is asked for."""
    fake = daemon(answers=False)
    async with playing(fake) as client:
        with pytest.raises(FetchError, match=r"none answers at http://127.0.0.1:11434: start it .*OLLAMA_HOST"):
            await library(client).fetch(TINY, lambda _: None)
        assert not await library(client).has(TINY)
        monkeypatch.setenv("OLLAMA_HOST", "192.0.2.7")
        with pytest.raises(SourceRefusedError, match=r"ollama://tiny:latest: OLLAMA_HOST names http://192.0.2.7:11434"):
            await ollama_here(client).fetch(TINY, lambda _: None)


async def test_what_its_answer_does_not_say_is_not_guessed(autojump_clock):
    """A server that is older than the facts is to be upgraded; nothing is pulled again for that."""
    fake = daemon(blobs={LIBRARY_BLOB})
    fake.shows = {}
    async with playing(fake) as client:
        with pytest.raises(NotGGUFError, match="upgrade Ollama"):
            await library(client).fetch(TINY, lambda _: None)
    assert fake.calls.count("/api/pull") == 0

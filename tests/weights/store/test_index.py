"""A file that changed upstream is fetched again on demand; an unchanged one is not."""

import pytest

from llmkube.weights.http_responses import RemoteVersion, Validator
from llmkube.weights.store.index import OWNER, PUBLIC, Audience, BlobInfo, Record, is_current
from weights.hostile import gguf, open_bench

DATA, OTHER = gguf(50_000), gguf(50_000, seed=2)
URL = "http://files.example/model.gguf"
SHA, OTHER_SHA = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("version", "seen", "same"),
    [
        (Validator(), RemoteVersion(5, SHA, Validator('"other"')), True),
        (Validator('"v1"'), RemoteVersion(5, OTHER_SHA, Validator('"v1"')), False),
        (Validator('"v1"'), RemoteVersion(5, None, Validator('"v1"')), True),
        (Validator('"v1"', "Mon"), RemoteVersion(5, None, Validator('"v1"', "Tue")), True),
        (Validator('"v1"', "Mon"), RemoteVersion(5, None, Validator('"v2"', "Mon")), False),
        (Validator('"v1"'), RemoteVersion(6, None, Validator('"v1"')), False),
        (Validator("", "Mon"), RemoteVersion(5, None, Validator("", "Tue")), False),
        (Validator("", "Mon"), RemoteVersion(5, None, Validator('"v2"', "Mon")), True),
        (Validator(), RemoteVersion(5, None, Validator('"v2"')), True),
        (Validator(), RemoteVersion(None, None, Validator()), True),
    ],
)
def test_a_digest_decides_then_the_etag_then_the_rest(version, seen, same):
    """Whatever says most decides; what cannot be compared has not changed."""
    assert is_current(Record("x", (BlobInfo(SHA, 5, 0),), versions=(version,)), [seen]) is same


def test_another_number_of_parts_is_another_model():
    """A model that has been split again has changed."""
    seen = RemoteVersion(5, SHA, Validator())
    assert not is_current(Record("x", (BlobInfo(SHA, 5, 0),)), [seen, seen])


async def test_only_who_asks_for_it_gets_the_new_version(tmp_path, autojump_clock):
    """A file that was fetched stays until it is asked for afresh; then a short look decides whether it comes again."""
    there = {"data": DATA, "etag": '"v1"'}

    async def script(wire, request):
        await wire.file(request, there["data"], etag=there["etag"])

    async with open_bench(tmp_path, script) as bench:
        first = await bench.get(URL)
        assert await bench.get(URL, fresh=True) == first
        assert [request.headers.get("range") for request in bench.network.requests] == [None, "bytes=0-3"]
        there.update(data=OTHER, etag='"v2"')
        assert await bench.get(URL) == first
        second = await bench.get(URL, fresh=True)
        assert (first.path.read_bytes(), second.path.read_bytes()) == (DATA, OTHER)
        assert await bench.get(URL) == second


GATED = Audience(namespaces=("a",), credentials=("c1",))


@pytest.mark.parametrize(
    ("audience", "namespace", "credential", "admits", "shares"),
    [
        (PUBLIC, "a", "", True, True),
        (OWNER, "a", "", False, False),
        (OWNER, None, "", True, False),
        (OWNER, "", "", False, False),
        (GATED, "a", "", True, False),
        (GATED, "b", "c1", False, True),
        (GATED, "b", "c2", False, False),
    ],
)
def test_who_is_in_an_audience(audience, namespace, credential, admits, shares):
    """A namespace by name, the store's owner always; another source's blob only with a credential that has worked."""
    assert audience.admits(namespace) is admits
    assert audience.shares_with(credential) is shares


def test_an_audience_grows_by_what_the_source_gives():
    """A credential that works admits its namespace; an answer without one admits all; nothing is noted twice."""
    grown = GATED.extended("b", "c2")
    assert grown == Audience(namespaces=("a", "b"), credentials=("c1", "c2"))
    assert grown.extended("b", "c1") == grown
    assert GATED.extended(None, "c1") == GATED
    assert GATED.extended("b", "").public

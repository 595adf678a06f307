"""The cordon of a host, as a value and as a file."""

import datetime

import pytest

from llmkube.supervisor.values.cordon import Cordon, cordon_text, parse_cordon

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize("word", [Cordon(), Cordon(NOON)])
def test_a_file_is_read_back(word):
    """With an end and without."""
    assert parse_cordon(cordon_text(word).encode()) == word


def test_it_holds_until_its_end():
    """It is over at the end itself; without one it never is."""
    assert Cordon(NOON).is_active(NOON - datetime.timedelta(seconds=1))
    assert not Cordon(NOON).is_active(NOON)
    assert Cordon().is_active(NOON)
    assert Cordon(NOON).end == "until 2026-01-01 12:00 UTC"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"until": 5}', b'{"until": "2026-01-01T12:00:00"}', b"{}"])
def test_an_invalid_cordon_is_refused(content):
    """Another type, a time without a zone, nothing."""
    with pytest.raises(ValueError, match=r"not a cordon|is not a time"):
        parse_cordon(content)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.weights.errors import SourceError
from llmkube.weights.source import Builtin, LocalFile, Remote, parse_source


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("builtin://demo", Builtin("demo")),
        ("/models/a.gguf", LocalFile("/models/a.gguf")),
        ("/models/with space.gguf", LocalFile("/models/with space.gguf")),
        ("file:///models/a.gguf", LocalFile("/models/a.gguf")),
        ("file://localhost/models/a.gguf", LocalFile("/models/a.gguf")),
        ("file:///models/with%20space.gguf", LocalFile("/models/with space.gguf")),
        ("https://host/a.gguf?x=1", Remote("https", "https://host/a.gguf?x=1")),
        ("http://host/a.gguf", Remote("http", "http://host/a.gguf")),
        ("hf://org/repo@main", Remote("hf", "hf://org/repo@main")),
        ("org/repo", Remote("hf", "org/repo")),
        ("Org.x/repo-GGUF@v1/2", Remote("hf", "Org.x/repo-GGUF@v1/2")),
        ("pvc://claim/a.gguf", Remote("pvc", "pvc://claim/a.gguf")),
        ("s3://bucket/key", Remote("s3", "s3://bucket/key")),
    ],
)
def test_every_documented_shape_is_understood(text, source):
    """Each form that the CRD admits is read as what it means."""
    assert parse_source(text) == source


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" /models/a.gguf", "white space"),
        ("/models/a.gguf\n", "white space"),
        ("model.gguf", "neither an absolute path nor a URL"),
        ("./models/a.gguf", "neither an absolute path nor a URL"),
        ("a/b/c.gguf", "neither an absolute path nor a URL"),
        ("file://models/a.gguf", "three slashes"),
        ("file:///", "three slashes"),
        ("file:///a%00b", "NUL"),
        ("builtin://", "builtin://demo"),
        ("builtin://../../etc/passwd", "builtin://demo"),
        ("ftp://host/a.gguf", "unknown scheme 'ftp'"),
        ("HTTPS://host/a.gguf", "unknown scheme"),
        ("https://", "names nothing"),
    ],
)
def test_anything_else_is_refused_with_its_field_and_a_way_out(text, says):
    """A source of another shape is refused, and the message names the field and what is wrong."""
    with pytest.raises(SourceError, match=says) as caught:
        parse_source(text)
    assert caught.value.field == "spec.source"
    assert caught.value.reason == "SourceInvalid"


def test_what_is_secret_in_a_url_stays_out_of_messages():
    """Neither a password nor a signed query is repeated, whether the source is understood or not."""
    remote = parse_source("https://me:hunter2@host/a.gguf?X-Amz-Signature=hunter2#hunter2")
    assert isinstance(remote, Remote)
    assert remote.redacted == "https://host/a.gguf"
    with pytest.raises(SourceError) as caught:
        parse_source("ftp://me:hunter2@host/a?sig=hunter2")
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_no_text_breaks_the_parser(text):
    """Every text is either a source or a SourceError."""
    try:
        source = parse_source(text)
    except SourceError:
        return
    if isinstance(source, LocalFile):
        assert source.path.startswith("/")
        assert "\0" not in source.path

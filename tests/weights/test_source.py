import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.weights.errors import FileSetError, SourceError
from llmkube.weights.source import (
    BucketFile,
    Builtin,
    HubFile,
    HubRepository,
    ImageSource,
    LocalFile,
    LocalFolder,
    VolumeSource,
    WebFile,
    engine_source,
    parse_source,
    pick,
)
from llmkube.weights.split_names import part_names
from llmkube.weights.urls import UserInfo, WebUrl


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("builtin://demo", Builtin("demo")),
        ("/models/a.gguf", LocalFile("/models/a.gguf")),
        ("/models/with space.gguf", LocalFile("/models/with space.gguf")),
        ("file:///models/a.gguf", LocalFile("/models/a.gguf")),
        ("file://localhost/models/a.gguf", LocalFile("/models/a.gguf")),
        ("file:///models/with%20space.gguf", LocalFile("/models/with space.gguf")),
        ("https://host/a.gguf?x=1", WebFile(WebUrl("https", "host", 443, "/a.gguf?x=1"))),
        ("http://Host:8080/a.gguf#here", WebFile(WebUrl("http", "host", 8080, "/a.gguf"))),
        ("https://h/x-00002-of-00003.gguf?k", WebFile(WebUrl("https", "h", 443, "/x-00001-of-00003.gguf?k"))),
        ("https://me:p%40ss@h/a", WebFile(WebUrl("https", "h", 443, "/a"), UserInfo("me", "p@ss"))),
        ("oci://registry.example.com/models/phi", ImageSource("registry.example.com", "models/phi", "latest")),
        ("oci://localhost:5000/phi:q4", ImageSource("localhost:5000", "phi", "q4")),
        (f"oci://r.io/a/b:t@sha256:{'0' * 64}", ImageSource("r.io", "a/b", f"sha256:{'0' * 64}")),
        ("hf://org/repo", HubRepository("org/repo")),
        ("hf://org/repo/", HubRepository("org/repo")),
        ("hf://org/repo@v1", HubRepository("org/repo", "v1")),
        ("org/repo", HubRepository("org/repo")),
        ("Org.x/repo-GGUF@refs/pr/1", HubRepository("Org.x/repo-GGUF", "refs/pr/1")),
        ("hf://org/repo/a.gguf", HubFile("org/repo", "a.gguf")),
        ("hf://org/repo/sub dir/a.GGUF@abc", HubFile("org/repo", "sub dir/a.GGUF", "abc")),
        ("hf://o/r/q/a-00003-of-00003.gguf@v1", HubFile("o/r", "q/a-00001-of-00003.gguf", "v1")),
        ("pvc://claim/a.gguf", VolumeSource("pvc", "pvc://claim/a.gguf")),
        ("s3://bucket/folder/key", BucketFile("bucket", "folder/key")),
        ("s3://bucket", BucketFile("bucket", "")),
        ("s3://bucket/m-00002-of-00002.gguf", BucketFile("bucket", "m-00001-of-00002.gguf")),
    ],
)
def test_every_documented_shape_is_understood(text, source):
    """Each form that the CRD admits is read as what it means."""
    assert parse_source(text) == source


@pytest.mark.parametrize(
    ("text", "message"),
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
        ("oci://", "is not an image"),
        ("oci://phi", "is not an image"),
        ("oci://r.io/Upper/case", "is not an image"),
        ("oci://r.io/phi@sha256:12", "is not an image"),
        ("builtin://", "builtin://demo"),
        ("builtin://../../etc/passwd", "builtin://demo"),
        ("ftp://host/a.gguf", "unknown scheme 'ftp'"),
        ("HTTPS://host/a.gguf", "unknown scheme"),
        ("https://", "has nothing after"),
        ("https:///a.gguf", "has no host"),
        ("https://h/\ud800.gguf", "not valid text"),
        ("/a/\ud800/b", "not valid text"),
        ("https://127.1/a.gguf", "its host is a number"),
        ("https://ho st/a.gguf", "a space"),
        ("hf://org", "is not a valid repository"),
        ("hf://org/repo/README.md", "is not a .gguf file"),
        ("hf://org/repo/../x.gguf", "is not a valid path"),
        ("hf://org/repo/a//x.gguf", "is not a valid path"),
        ("hf://org/repo@v1/x.gguf", "put it at the end"),
        ("hf://org/repo/x.gguf@", "malformed revision"),
        ("hf://org/repo/x.gguf@../x", "malformed revision"),
        ("hf://org/repo/x-00000-of-00003.gguf", "part 0 of 3"),
        ("hf://org/repo/x-00004-of-00003.gguf", "part 4 of 3"),
        ("hf://org/repo/x-00001-of-99999.gguf", "more than 128"),
        ("org/repo@a b", "malformed revision"),
    ],
)
def test_anything_else_is_refused_with_its_field_and_a_way_out(text, message):
    """A source of another shape is refused, and the message names the field and what is wrong."""
    with pytest.raises(SourceError, match=message) as caught:
        parse_source(text)
    assert caught.value.field == "spec.source"
    assert caught.value.reason == "SourceInvalid"


def test_what_is_secret_in_a_url_stays_out_of_messages():
    """Neither a password nor a signed query is repeated, whether the source is understood or not."""
    remote = parse_source("https://me:hunter2@host/a.gguf?X-Amz-Signature=hunter2#hunter2")
    assert remote.redacted == "https://host/a.gguf"
    assert "hunter2" not in repr(remote.user_info)
    with pytest.raises(SourceError) as caught:
        parse_source("ftp://me:hunter2@host/a?sig=hunter2")
    assert "hunter2" not in str(caught.value)


def test_one_part_selects_all_parts():
    """Whichever part of a split model is named, the parts are the same, in order."""
    expected = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert part_names("m-00002-of-00002.gguf") == part_names("m-00001-of-00002.gguf") == expected
    assert part_names("m-1-of-2.gguf") == ("m-1-of-2.gguf",)
    source = parse_source("https://h/d/m-00002-of-00002.gguf?s")
    assert [str(url) for url in source.parts] == [f"https://h/d/{name}?s" for name in expected]


@pytest.mark.parametrize("weights", ["custom", "pytorch"])
def test_weights_that_only_their_engine_reads(weights):
    """A file on a web server may have any content, a local path may be a folder, and other sources are refused."""
    assert engine_source(LocalFile("/m"), (), weights) == LocalFolder("/m", is_opaque=True)
    web = parse_source("https://example.com/ggml-base.bin")
    assert engine_source(web, (), weights) == attrs.evolve(web, is_gguf=False)
    for text, files in (("org/repo", ()), ("/m", ("a",)), ("builtin://demo", ())):
        with pytest.raises(SourceError, match="use an https:// URL, or the absolute path"):
            engine_source(parse_source(text), files, weights)


def test_who_asks_makes_no_other_file():
    """User and password are no part of a source's identity; its query and its revision are."""
    assert parse_source("https://me:x@h/a").identity == parse_source("https://h/a").identity
    assert parse_source("https://h/a?v=1").identity != parse_source("https://h/a?v=2").identity
    assert parse_source("o/r").identity == parse_source("hf://o/r@main").identity != parse_source("o/r@v2").identity


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


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("org/repo:Q4_K_M", HubRepository("org/repo", "main", "Q4_K_M")),
        ("org/repo:UD-Q4_K_XL@v1", HubRepository("org/repo", "v1", "UD-Q4_K_XL")),
        ("hf://org/repo:Q8_0", HubRepository("org/repo", "main", "Q8_0")),
        ("hf.co/org/repo:Q8_0", HubRepository("org/repo", "main", "Q8_0")),
        ("huggingface.co/org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo/", HubRepository("org/repo")),
        ("https://huggingface.co/org/repo?library=llama-cpp-python", HubRepository("org/repo")),
        ("https://hf.co/org/repo:IQ2_XXS", HubRepository("org/repo", "main", "IQ2_XXS")),
        ("https://huggingface.co/org/repo/tree/v1", HubRepository("org/repo", "v1")),
        ("https://huggingface.co/org/repo/blob/main/q/m.gguf", HubFile("org/repo", "q/m.gguf")),
    ],
)
def test_a_repository_as_people_write_it(text, source):
    """A name with a quantization, the hub's short name, and what a browser shows are the same repository."""
    assert parse_source(text) == source
    assert parse_source(source.identity) == source


@pytest.mark.parametrize(
    "text",
    [
        "https://huggingface.co/org/repo/resolve/main/m.gguf",
        "https://huggingface.co/datasets/data",
        "https://x.example/a/b",
    ],
)
def test_what_is_no_page_of_a_repository_stays_a_file(text):
    """Addresses that are downloaded from keep the name by which the store knows them."""
    assert isinstance(parse_source(text), WebFile)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("org/repo:", "malformed quantization"),
        ("org/repo:Q4/x", "malformed quantization"),
        ("hf://org/repo:Q4_K_M/m.gguf", "malformed quantization"),
    ],
)
def test_a_refusal_names_what_to_write(text, words):
    """The error about a source that cannot be fetched names the form that can."""
    with pytest.raises(SourceError, match=words):
        parse_source(text)


FIRST, SECOND = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"


@pytest.mark.parametrize(
    ("source", "files", "picked"),
    [
        ("o/r", [], parse_source("o/r")),
        ("/m.gguf", [], parse_source("/m.gguf")),
        ("o/r", ["a/b.gguf"], HubFile("o/r", "a/b.gguf")),
        ("hf://o/r@v1", ["b.gguf"], HubFile("o/r", "b.gguf", "v1")),
        ("o/r", [SECOND, FIRST], HubFile("o/r", FIRST)),
        ("s3://b/folder/", ["m.gguf"], BucketFile("b", "folder/m.gguf")),
        ("s3://b/folder", [FIRST, SECOND], BucketFile("b", f"folder/{FIRST}")),
        ("oci://r.io/m:1", ["m.gguf"], ImageSource("r.io", "m", "1", "m.gguf")),
    ],
)
def test_the_first_file_is_the_engine_s(source, files, picked):
    """Without a choice the source is unchanged; one part of a split model selects all of its parts."""
    assert pick(parse_source(source), files) == picked


@pytest.mark.parametrize(
    ("source", "files", "message"),
    [
        ("/m.gguf", ["m.gguf"], "but spec.source is not one"),
        ("https://h/m.gguf", ["m.gguf"], "but spec.source is not one"),
        ("o/r", ["config.json"], "'config.json' is not the path of a .gguf file; patterns are not supported"),
        ("o/r", ["a.gguf", "b.gguf"], "'b.gguf' is not a part of 'a.gguf'; remove it"),
        ("s3://b/folder", [FIRST, "x.gguf"], f"'x.gguf' is not a part of '{FIRST}'; remove it"),
        (
            "oci://r.io/m:1",
            ["../m.gguf"],
            "'../m.gguf' is not a valid path of a file in an image; patterns are not supported",
        ),
    ],
)
def test_what_cannot_be_picked_is_named(source, files, message):
    """The message says which file, and what to write in its place."""
    with pytest.raises(FileSetError) as refused:
        pick(parse_source(source), files)
    assert message in str(refused.value)

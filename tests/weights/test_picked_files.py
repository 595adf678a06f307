"""What `spec.files` picks from a source, and where it is refused."""

import pytest

from llmkube.weights.errors import FileSetError
from llmkube.weights.picked_files import pick
from llmkube.weights.source import BucketFile, HubFile, ImageSource, parse_source

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
    """Nothing picked leaves the source; a part of a split model stands for all of its parts."""
    assert pick(parse_source(source), files) == picked


@pytest.mark.parametrize(
    ("source", "files", "says"),
    [
        ("/m.gguf", ["m.gguf"], "but spec.source names none"),
        ("https://h/m.gguf", ["m.gguf"], "but spec.source names none"),
        ("o/r", ["config.json"], "'config.json' names no .gguf file in a repository; patterns do not work"),
        ("o/r", ["a.gguf", "b.gguf"], "'b.gguf' is no part of 'a.gguf'; leave it out"),
        ("s3://b/folder", [FIRST, "x.gguf"], f"'x.gguf' is no part of '{FIRST}'; leave it out"),
        ("oci://r.io/m:1", ["../m.gguf"], "'../m.gguf' is no path of a file in an image; patterns do not work"),
    ],
)
def test_what_cannot_be_picked_is_named(source, files, says):
    """The message says which file, and what to write in its place."""
    with pytest.raises(FileSetError) as refused:
        pick(parse_source(source), files)
    assert says in str(refused.value)

"""A source has another folder whenever its bytes may differ, and its files have names that are known in advance."""

import pytest

from controller.podobjects import HUB_FILE, SHA, cluster_model
from llmkube.controller.render.model_sources import (
    cache_key,
    claim_path,
    extra_files,
    job_name,
    published_name,
    source_of,
)
from llmkube.weights.errors import SourceError


def test_the_key_changes_with_the_bytes():
    """Source, files, projector and digest make another folder; hardware and resources do not."""
    first = cluster_model("org/repo", files=["a.gguf"])
    others = [
        cluster_model("org/other", files=["a.gguf"]),
        cluster_model("org/repo", files=["b.gguf"]),
        cluster_model("org/repo", files=["a.gguf"], mmproj="m.gguf"),
        cluster_model("org/repo", files=["a.gguf"], sha256=SHA),
    ]
    keys = [cache_key(one.spec) for one in (first, *others)]
    assert len(set(keys)) == len(keys)
    same = cluster_model("org/repo", files=["a.gguf"], resources={"cpu": "4"}, quantization="Q4_0")
    assert cache_key(same.spec) == keys[0]


def test_a_job_has_a_name_that_fits_a_label():
    """However long the Model's name is, two long ones with the same prefix do not share a Job."""
    names = {job_name(cluster_model(name=name)) for name in ("a", "x" * 200 + "1", "x" * 200 + "2", "a.b-" * 12 + "c")}
    assert len(names) == 4
    assert all(len(name) <= 63 for name in names)


@pytest.mark.parametrize(
    ("source", "files", "name"),
    [
        (HUB_FILE, (), "model.gguf"),
        ("https://x.org/a-00002-of-00003.gguf", (), "model-00001-of-00003.gguf"),
        ("org/repo", ("a-00001-of-00002.gguf",), "model-00001-of-00002.gguf"),
        ("org/repo", (), ""),
        ("builtin://demo", (), "model.gguf"),
        ("pvc://a/b", (), ""),
    ],
)
def test_the_name_of_the_first_file_is_known_in_advance(source, files, name):
    """Except for a whole repository, of which only fetching can count the parts of its model."""
    assert published_name(source_of(cluster_model(source, files=list(files)).spec)) == name


def test_parts_of_a_split_model_are_not_fetched_twice():
    """Parts of the first file come with it; only the rest is fetched in addition."""
    spec = cluster_model(
        "org/repo", files=["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "draft.gguf"], mmproj="mm.gguf"
    ).spec
    assert extra_files(spec) == ("draft.gguf", "mm.gguf")


@pytest.mark.parametrize("source", ["pvc://claim", "pvc://claim/../etc", "pvc://claim//x", "pvc:///x"])
def test_a_claims_path_stays_on_the_claim(source):
    """A missing path, or one that leads out of the claim, is refused."""
    with pytest.raises(SourceError):
        claim_path(source_of(cluster_model(source).spec))

"""What a container says at its end fits where Kubernetes keeps it, whatever language it is in."""

import json

import pytest

from llmkube.base.errors import UserError
from llmkube.k8s.wire.termination_message import MAX_BYTES
from llmkube.programs.fetch_job.reports import tell, told_failure, told_gguf
from llmkube.weights.formats.shape import GGUFFacts


def heard(path, words):
    tell(path / "log", words)
    said = (path / "log").read_bytes()
    assert len(said) <= MAX_BYTES
    return json.loads(said)


@pytest.mark.parametrize("letter", ["a", '"', "\n", "\x01", "é", "模", "🦙", "\udc80"])
def test_a_failure_of_any_language_can_be_read(tmp_path, letter):
    """However many bytes a character takes, the reason and the beginning of the sentence arrive whole."""
    said = heard(tmp_path, told_failure(UserError(letter * 5000)))
    assert said["reason"] == "SourceInvalid"
    assert len(said["message"]) >= 499
    assert set(said["message"]) == {"?" if letter == "\udc80" else letter}


def test_a_short_sentence_is_told_as_it_is(tmp_path):
    """Nothing is cut from what fits."""
    assert heard(tmp_path, told_failure(UserError("模型 not found")))["message"] == "模型 not found"


def test_a_result_fits_with_its_longest_texts_and_names(tmp_path):
    """Of many files with long names the last are left out; path, size, digest and header never are."""
    facts = GGUFFacts(architecture="模" * 900, file_version=3, tensor_count=1, size_bytes=1, name="模" * 900,
                      license="模" * 900)  # fmt: skip
    result = {
        "path": "model.gguf",
        "sizeBytes": 2**60,
        "sha256": "a" * 64,
        "files": [f"{number:03}-{'模' * 80}.gguf" for number in range(16)],
        "gguf": told_gguf(facts),
        "kept": "模" * 300,
    }
    said = heard(tmp_path, result)
    assert {**said, "files": []} == {**result, "files": []}
    assert said["files"] == result["files"][: len(said["files"])]
    assert said["files"]


def test_a_machine_without_such_a_place_is_no_error(tmp_path):
    """Nobody listens, and nothing fails."""
    tell(tmp_path / "nowhere" / "log", {"path": "x"})

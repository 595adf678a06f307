"""Files that are loaded with a model: what their headers tell before an engine starts."""

import pytest

from llmkube.base.trusted_paths import open_file
from llmkube.weights.errors import NotGGUFError, ProjectorError
from llmkube.weights.formats.gguf import read_header, vocabulary_difference
from llmkube.weights.formats.projector import read_projector, with_projector
from llmkube.weights.split_names import choose_projector
from tiny_models import DEMO
from tiny_projectors import KINDS, ColourModel, Projector

LETTER = b"\x01" + bytes(7)
"""A token of one letter has this length before it."""


MODEL = b"tokenizer.ggml.model\x08" + bytes(3) + b"\x05" + bytes(7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_projector_of_another_model_is_refused(tmp_path, kind):
    """The length of its vectors is read for each kind, and the error names the field, both lengths and the fix."""
    model, path = tmp_path / "m.gguf", tmp_path / "mmproj.gguf"
    ColourModel(model)
    Projector(path, kind)
    facts, projector = read_header(model), read_projector(path, name="mmproj.gguf")
    assert str(with_projector(facts, projector).projector) == f"mmproj.gguf ({kind}: pictures)"
    message = (
        "Model.spec.mmproj: mmproj.gguf is the projector of another model: .* 64 values, and the model's 128; .* none"
    )
    with pytest.raises(ProjectorError, match=message):
        with_projector(read_header(DEMO), projector)


def test_a_model_is_no_projector_and_the_reverse(tmp_path):
    """Both errors say what the file is, and where it belongs."""
    path = tmp_path / "mmproj.gguf"
    Projector(path, "mlp")
    with pytest.raises(NotGGUFError, match=r"projector, not a model; .* spec\.mmproj"):
        read_header(path)
    with pytest.raises(ProjectorError, match=r"m\.gguf is not a projector but a model of the architecture llama; name"):
        read_projector(DEMO, name="m.gguf")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"], "mmproj-F16.gguf"),
        (["chat-Q8_0.gguf", "mmproj.gguf", "readme.md", "imatrix.gguf"], "mmproj.gguf"),
        (["other-Q4_K_M.gguf", "mmproj-F16.gguf"], ""),
        (["other-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-Chat-f32.gguf"], "mmproj-Chat-f32.gguf"),
        (["chat-Q8_0.gguf"], ""),
    ],
)
def test_the_projector_of_a_model_among_files(names, chosen):
    """One in 16 bits, and next to other models only one with the model's name."""
    assert choose_projector("chat-Q4_K_M.gguf", ["chat-Q4_K_M.gguf", *names]) == chosen


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (LETTER + b"Z", LETTER + b"~", "its tokens are different"),
        (b"<|user|>", b"<|USER|>", ""),  # the first tokens may differ
        (b"add_bos_token\x07\0\0\0\x01", b"add_bos_token\x07\0\0\0\0", "its tokenizer.ggml.add_bos_token is different"),
        (MODEL + b"llama", MODEL + b"gpt-2", "its tokenizer.ggml.model is different"),
    ],
)  # fmt: skip
def test_the_vocabulary_of_a_draft_model(tmp_path, old, new, why):
    """The rules are those by which llama.cpp stops to draft."""
    path = tmp_path / "draft.gguf"
    assert DEMO.read_bytes().count(old) >= 1
    path.write_bytes(DEMO.read_bytes().replace(old, new, 1))
    assert vocabulary_difference((DEMO, open_file), (path, open_file)) == why

import pytest

from llmkube.base.errors import UserError
from llmkube.runtimes.container.images import Images
from llmkube.runtimes.plan import PlanError
from llmkube.runtimes.registry import BUILT_IN, IMAGES, parse_image_overrides


@pytest.mark.parametrize("image", IMAGES.values(), ids=list(IMAGES))
def test_every_image_of_ours_is_pinned(image):
    """A restart never brings another engine: each has a tag, and none is a moving tag."""
    tag = image.rpartition(":")[2]
    assert any(character.isdigit() for character in tag)
    assert not tag.startswith(("latest", "main", "nightly"))


def test_nvidia_gets_cuda_13_and_a_cpu_gets_no_cuda():
    """llama.cpp's image suits the newest cards, and is small without one."""
    assert "cuda13" in IMAGES["llamacpp-cuda"]
    assert "cuda" not in IMAGES["llamacpp"]


@pytest.mark.parametrize(
    ("images", "runtime", "stack", "chosen"),
    [
        (Images({"llamacpp": "a"}), "llamacpp", "cuda", "a"),
        (Images({"llamacpp": "a", "llamacpp-cuda": "b"}), "llamacpp", "cuda", "b"),
        (Images({"llamacpp-cuda": "b"}), "llamacpp", "", IMAGES["llamacpp"]),
        (Images({"tgi": "a"}, registry="r"), "tgi", "rocm", "a"),
        (Images(registry="r.local:5000/m/"), "vllm", "cuda", f"r.local:5000/m/{IMAGES['vllm']}"),
        (Images(registry="r.local"), "tgi", "cuda", "r.local/huggingface/text-generation-inference:3.3.7"),
    ],
)
def test_an_operators_image_applies_and_a_mirror_keeps_the_path(images, runtime, stack, chosen):
    """The most specific override is used unchanged; a registry replaces our registry, and nothing else."""
    assert images.choose(runtime, stack, BUILT_IN[runtime].images.get(stack, "")) == chosen


@pytest.mark.parametrize(("runtime", "stack"), [("generic", ""), ("personaplex", "cuda"), ("vllm", "rocm")])
def test_without_an_image_the_user_has_to_name_one(runtime, stack):
    """No image is guessed: the message names the field."""
    with pytest.raises(PlanError, match="name one") as refused:
        Images().choose(runtime, stack, BUILT_IN[runtime].images.get(stack, ""))
    assert refused.value.field == "spec.image"


def test_an_image_for_an_unknown_runtime_is_refused():
    """A typing error would otherwise silently change nothing."""
    assert (
        parse_image_overrides({"vllm": "mine/vllm:1", "llamacpp-cuda": "x", "personaplex": "y"})["vllm"]
        == "mine/vllm:1"
    )
    with pytest.raises(UserError, match="'vlm' is not an engine"):
        parse_image_overrides({"vlm": "x"})

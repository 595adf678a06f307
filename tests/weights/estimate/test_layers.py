import gguf
import pytest

from llmkube.weights.estimate.demand import Demand
from llmkube.weights.estimate.layers import KNOWN, layers_of
from llmkube.weights.estimate.sizing import estimate
from model_shapes import decoder


@pytest.mark.parametrize(
    ("architecture", "keys", "windowed"),
    [
        ("gemma3", {}, 10),
        ("gemma3", {"attention__sliding_window_pattern": 2}, 6),
        ("gemma3", {"attention__sliding_window_pattern": 1}, 0),  # every layer sees the whole context
        ("smallthinker", {}, 9),  # the first of four sees it, not the last
        ("phi3", {}, 0),
    ],
)
def test_which_layers_have_a_window(architecture, keys, windowed):
    """A file's own period counts before the architecture's, as in llama.cpp's `set_swa_pattern`."""
    shape = decoder(architecture, layers=12, attention__sliding_window=512, **keys)
    layers = layers_of(shape)
    assert sum(layer.window == 512 for layer in layers) == windowed
    assert layers[0].window == (512 if windowed and architecture == "gemma3" else 0)
    assert estimate(shape, Demand()).certain


def test_the_architectures_that_we_do_not_know_are_listed():
    """A new one in the `gguf` package is added to `families.toml` after a load, or to this list."""
    unknown = {"clip", "glm-dsa", "hunyuan_vl", "paddleocr", "t5", "wavtokenizer-dec"}
    assert set(gguf.MODEL_ARCH_NAMES.values()) - KNOWN == unknown

import pytest

from llmkube.weights.estimate.demand import ALL_LAYERS, Demand
from llmkube.weights.estimate.tensor_placement import EXPERTS, place_weights
from model_shapes import decoder


@pytest.mark.parametrize(
    ("pattern", "moves"),
    [
        (EXPERTS.replace("_(ch|)exps", ""), True),
        (r"blk\.(1|2|3|4|5|6|7|8|9|10|11|12)\.ffn_(up|down)\.weight", True),
        (r"blk\..*\.ffn_.*\.weight", True),
        (r"blk\.(?:[0-9]|1[0-9])\.attn_[qkv]+\.", True),
        (r"[)]?\)?blk", True),
        ("(b+)+lk", False),
        ("(?:blk|blk.)*ffn", False),
        ("(b|k|l)?" * 30, False),
        ("b?" * 40, False),
        (".*" * 12, False),
        (".*" * 128, False),
    ],
)
def test_a_pattern_that_takes_for_ever_is_not_tried(pattern, moves):
    """Patterns that people write move tensors; those that Python would try in 2^60 ways match nothing."""
    base = decoder(layers=12)
    whole = place_weights(base, Demand(device_layers=ALL_LAYERS, repack=False))
    moved = place_weights(base, Demand(device_layers=ALL_LAYERS, overrides=((pattern, "CPU"),), repack=False))
    assert (moved.device_bytes < whole.device_bytes) == moves

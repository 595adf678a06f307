import struct

import pytest

from llmkube.weights.errors import NotMLXError
from llmkube.weights.estimate.demand import Demand
from llmkube.weights.estimate.mlx import is_mlx_folder, read_folder
from llmkube.weights.estimate.sizing import estimate
from mlx_folder import CONFIG, folder


def sizes(path, **demand):
    return {each.name: each.size_bytes for each in estimate(read_folder(path), Demand(**demand)).components}


def test_a_folder_is_sized(tmp_path):
    """Weights are the tensors' bytes, and the cache has grouped heads in 16 bits for the whole context."""
    assert is_mlx_folder(folder(tmp_path))
    found = sizes(tmp_path, context=8192)
    assert found["weights"] == 77791232
    assert found["KV cache"] == 8192 * 4 * 8 * (128 + 128) * 2


def test_several_files_are_one_model(tmp_path):
    """Tensors of all files count."""
    folder(tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    assert sizes(tmp_path)["weights"] == 2 * 77791232


@pytest.mark.parametrize(
    "more",
    [
        {"sliding_window": 512, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        {"sliding_window": 512, "sliding_window_pattern": 4},
        {"text_config": {"sliding_window": 512, "sliding_window_pattern": 4}},
    ],
)
def test_windows_are_believed(tmp_path, more):
    """Layers with a window keep the window, whichever key of the config states it."""
    folder(tmp_path, CONFIG | more)
    assert sizes(tmp_path, context=8192)["KV cache"] == (8192 + 3 * 512) * 8 * (128 + 128) * 2


def test_a_latent_cache(tmp_path):
    """DeepSeek's latent vector is one per token, whatever the number of heads."""
    folder(tmp_path, CONFIG | {"kv_lora_rank": 512, "qk_rope_head_dim": 64})
    assert sizes(tmp_path, context=8192)["KV cache"] == 8192 * 4 * 576 * 2


@pytest.mark.parametrize(
    "spoiled",
    [
        {"header": b""},
        {"header": struct.pack("<Q", 2**61) + b"{}"},
        {"header": struct.pack("<Q", 2) + b"[]"},
        {"header": struct.pack("<Q", 9) + b"not json!"},
        {"tensors": {}},
        {"tensors": {"a": {"dtype": "F16", "shape": "no", "data_offsets": [0, 1]}}},
        {"tensors": {"a": {"dtype": "F16", "shape": [float("inf")], "data_offsets": [0, 1]}}},
        {"tensors": {"a": {"dtype": "F16", "shape": [1], "data_offsets": [0, float("inf")]}}},
        {"config": {}},
        {"config": CONFIG | {"num_hidden_layers": 2**61}},
        {"config": []},
    ],
    ids=str,
)
def test_what_is_no_model_is_refused(tmp_path, spoiled):
    """A broken file is named, and costs neither time nor memory."""
    folder(tmp_path, **spoiled)
    with pytest.raises(NotMLXError):
        read_folder(tmp_path)


def test_a_folder_without_weights_is_none(tmp_path):
    """A config alone makes no MLX folder."""
    (tmp_path / "config.json").write_text("{}")
    assert not is_mlx_folder(tmp_path)

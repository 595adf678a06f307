"""A model that Ollama describes gets the same estimate as its file."""

import attrs
import pytest

from gguf_corpus import DEMO
from llmkube.weights.errors import NotGGUFError
from llmkube.weights.estimate.demand import Demand
from llmkube.weights.estimate.sizing import estimate
from llmkube.weights.formats.gguf import read_header
from llmkube.weights.formats.ollama_show import read_show
from programs.daemon_engine.fake_ollama import shown_header

DIGEST = "ab" * 32
MODELFILE = f"# Modelfile\nFROM /var/lib/my models/blobs/sha256-{DIGEST}\nTEMPLATE x\n"


def reply(**changes):
    return {"modelfile": MODELFILE, **shown_header(DEMO), **changes}


def test_memory_is_promised_as_of_the_file():
    """Path and digest are those of the store; architecture, numbers and tensors are the header's."""
    of_file = read_header(DEMO)
    kept = read_show("demo:latest", reply(), 0)
    assert (str(kept.path), kept.sha256) == (f"/var/lib/my models/blobs/sha256-{DIGEST}", DIGEST)
    shown, read = kept.facts.shape, of_file.shape
    assert attrs.evolve(shown, size_bytes=read.size_bytes) == read
    demand = Demand(context=512)
    assert estimate(shown, demand).total_bytes == estimate(read, demand).total_bytes
    for name in ("architecture", "context_length", "layer_count", "embedding_size", "head_count", "head_count_kv"):
        assert getattr(kept.facts, name) == getattr(of_file, name), name


def test_unaccounted_bytes_are_weights():
    """A projector is listed with the model; a type of tensor that is newer than our table has no size of its own."""
    alone, demand = read_show("demo:latest", reply(), 0), Demand(context=512)
    tensor_bytes = sum(each.size_bytes for each in alone.facts.shape.tensors)
    large = read_show("demo:latest", reply(projector_info={"general.architecture": "clip"}), tensor_bytes + (1 << 30))
    more = estimate(large.facts.shape, demand).total_bytes - estimate(alone.facts.shape, demand).total_bytes
    assert more == 1 << 30
    newer = [each | {"type": "Q9_NEW"} for each in reply()["tensors"]]
    assert read_show("demo:latest", reply(tensors=newer), 7 << 20).facts.shape.unread_bytes == 7 << 20


def test_numbers_per_layer_stay_apart():
    """Models whose layers differ give a list; a yes or no counts as a number, text as absent."""
    info = reply()["model_info"]
    arch = info["general.architecture"]
    heads = [4] * info[f"{arch}.block_count"]
    info |= {f"{arch}.attention.head_count_kv": heads, f"{arch}.attention.causal": False, f"{arch}.vocab_size": "many"}
    facts = read_show("demo:latest", reply(model_info=info), 0).facts
    assert facts.shape.numbers["attention.head_count_kv"] == tuple(heads)
    assert facts.shape.numbers["attention.causal"] == (0,)
    assert "vocab_size" not in facts.shape.numbers


def without(key):
    return {name: value for name, value in reply()["model_info"].items() if not name.endswith(key)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modelfile": "FROM other\n"}, "no GGUF file"),
        ({"remote_host": "https://ollama.com:443"}, "no GGUF file"),
        ({"model_info": None}, "upgrade Ollama"),
        ({"tensors": []}, "upgrade Ollama"),
        ({"model_info": {}}, "reports no general.architecture"),
        ({"model_info": without("block_count")}, r"reports no \w+\.block_count"),
        ({"tensors": [{"name": "a", "type": "F32"}]}, "without its sizes"),
        ({"tensors": [{"name": "a", "type": "F32", "shape": [-1]}]}, "without its sizes"),
        ({"tensors": ["a"]}, "without its sizes"),
    ],
)
def test_a_model_without_a_known_need_is_refused(changes, words):
    """No memory is promised on a guess: the model is named, and what is missing of it."""
    with pytest.raises(NotGGUFError, match=words) as refused:
        read_show("demo:latest", reply(**changes), 0)
    assert "demo:latest" in str(refused.value)

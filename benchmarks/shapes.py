"""GGUF files of real models' shapes whose weights are a hole in the file: an 8B model takes a few MiB of the disk.

An engine cannot tell: names, sizes and types of the tensors, hyperparameters and the size of the vocabulary are those
of the published models, so it allocates what it would for them. What it would answer is noise, since all weights read
as zeros. Sources of the figures are the models' own `config.json` files, and llama.cpp's list of tensors for each
architecture (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-arch.cpp).
"""

import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from llmkube.weights.gguf_format import DEFAULT_ALIGNMENT, TENSOR_TYPES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from gguf_bytes import ARRAY, BOOL, F32, I32, STRING, U32, array, array_head, header, key, tensor, text

KINDS: Final = {name: (number, block, size) for number, (name, block, size) in TENSOR_TYPES.items()}
_COARSER: Final = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""What quantizers take instead where a row is no multiple of 256."""

Value = bool | int | float | str | Sequence[int] | Sequence[bool]
Tensors = list[tuple[str, tuple[int, ...]]]


@attrs.frozen
class Shape:
    """A model as its header describes it; the keys are without the architecture in front."""

    architecture: str
    keys: Mapping[str, Value]
    vocabulary: int
    tensors: Tensors
    types: int = 0
    """How many kinds of token there are (BERT's segments)."""

    @property
    def layers(self) -> int:
        """How many blocks it has."""
        return int(self.keys["block_count"])  # type: ignore[arg-type] # always a number

    def kind(self, name: str, dimensions: tuple[int, ...], mix: str) -> str:
        """Return the type that a quantizer would give a tensor, about as `llama-quantize` chooses."""
        plain = len(dimensions) == 1 or not name.endswith(".weight")
        if plain or any(word in name for word in ("norm", "ffn_gate_inp", "ssm_conv1d", "shortconv.conv", "position")):
            return "F32"
        chosen = mix
        if mix == "Q4_K_M":
            tied = all(other != "output.weight" for other, _ in self.tensors)
            careful = name == ("token_embd.weight" if tied else "output.weight")
            if name.startswith("blk.") and any(word in name for word in ("attn_v.", "attn_qkv.", "ffn_down")):
                layer, eighth = int(name.split(".")[1]), self.layers // 8
                careful = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
            chosen = "Q6_K" if careful else "Q4_K"
        if mix == "MXFP4":
            chosen = "MXFP4" if "_exps" in name else "Q8_0"
        if dimensions[0] % KINDS[chosen][1]:
            chosen = _COARSER.get(chosen, "F16")
        return chosen if dimensions[0] % KINDS[chosen][1] == 0 else "F16"

    def head(self, mix: str) -> tuple[bytes, int]:
        """Return the header's bytes, padded to where the data starts, and the size of that data."""
        entries, offset = [], 0
        for name, dimensions in self.tensors:
            number, block, size = KINDS[self.kind(name, dimensions, mix)]
            entries.append(tensor(name, dimensions, number, offset))
            elements = 1
            for dimension in dimensions:
                elements *= dimension
            offset += _padded(elements // block * size)
        keys = [key("general.architecture", STRING, self.architecture), key("general.quantization_version", U32, 2)]
        keys += [_key(f"{self.architecture}.{name}", value) for name, value in self.keys.items()]
        data = header(*keys, *_tokenizer(self.vocabulary, self.types), tensors=entries)
        return data.ljust(_padded(len(data)), b"\0"), offset

    def write(self, path: Path, mix: str) -> None:
        """Write the file: a header, then nothing but a hole of the right size."""
        head, size = self.head(mix)
        with path.open("wb") as file:
            file.write(head)
            file.truncate(len(head) + size)


def _padded(size: int) -> int:
    return -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _key(name: str, value: Value) -> bytes:
    if isinstance(value, str):
        return key(name, STRING, value)
    if isinstance(value, bool | int | float):
        return key(name, BOOL if isinstance(value, bool) else U32 if isinstance(value, int) else F32, value)
    return array(name, BOOL if isinstance(value[0], bool) else I32, value)


def _tokenizer(count: int, types: int) -> list[bytes]:
    """Return the smallest vocabulary of that many tokens that an engine accepts: the buffers depend on the number."""
    words = [b"[PAD]", b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]"] if types else [b"<unk>", b"<s>", b"</s>"]
    if not types:
        words += [b"<0x%02X>" % byte for byte in range(256)]
    words += [b"%d" % number for number in range(count - len(words))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * count][:count]
    keys = [
        key("tokenizer.ggml.model", STRING, "bert" if types else "llama"),
        array_head("tokenizer.ggml.tokens", STRING, count) + b"".join(map(text, words)),
    ]
    if types:
        return [*keys, key("tokenizer.ggml.token_type_count", U32, types)]
    scores = array_head("tokenizer.ggml.scores", F32, count) + bytes(4 * count)
    given = array_head("tokenizer.ggml.token_type", I32, count) + struct.pack(f"<{count}i", *kinds)
    return [*keys, scores, given]


# Tensors that architectures have in common


def _ends(width: int, vocabulary: int, *, tied: bool = False) -> Tensors:
    ends: Tensors = [("token_embd.weight", (width, vocabulary)), ("output_norm.weight", (width,))]
    return ends if tied else [*ends, ("output.weight", (width, vocabulary))]


def _norms(width: int, *names: str) -> Tensors:
    return [(f"{name}.weight", (width,)) for name in names]


def _attention(width: int, heads: int, kv_heads: int, length: int, *, bias: bool = False, norms: bool = False) -> Tensors:
    found: Tensors = [
        ("attn_q.weight", (width, heads * length)),
        ("attn_k.weight", (width, kv_heads * length)),
        ("attn_v.weight", (width, kv_heads * length)),
        ("attn_output.weight", (heads * length, width)),
    ]
    if bias:
        found += [(f"attn_{which}.bias", (count * length,)) for which, count in zip("qkv", (heads, kv_heads, kv_heads), strict=True)]
    return found + _norms(length, "attn_q_norm", "attn_k_norm") if norms else found


def _dense(width: int, inner: int, *, gate: bool = True) -> Tensors:
    found: Tensors = [("ffn_up.weight", (width, inner)), ("ffn_down.weight", (inner, width))]
    return [("ffn_gate.weight", (width, inner)), *found] if gate else found


def _experts(width: int, inner: int, count: int, shared: int = 0) -> Tensors:
    found: Tensors = [
        ("ffn_gate_inp.weight", (width, count)),
        ("ffn_gate_exps.weight", (width, inner, count)),
        ("ffn_up_exps.weight", (width, inner, count)),
        ("ffn_down_exps.weight", (inner, width, count)),
    ]
    return found + _shared(width, shared) if shared else found


def _shared(width: int, inner: int) -> Tensors:
    return [(name.replace(".", "_shexp."), dimensions) for name, dimensions in _dense(width, inner)]


def _mamba(width: int, inner: int, state: int, conv: int, rank: int) -> Tensors:
    return [
        ("ssm_in.weight", (width, 2 * inner)),
        ("ssm_conv1d.weight", (conv, inner)),
        ("ssm_conv1d.bias", (inner,)),
        ("ssm_x.weight", (inner, rank + 2 * state)),
        ("ssm_dt.weight", (rank, inner)),
        ("ssm_dt.bias", (inner,)),
        ("ssm_a", (state, inner)),
        ("ssm_d", (inner,)),
        ("ssm_out.weight", (inner, width)),
    ]


def _mamba2(width: int, inner: int, state: int, conv: int, heads: int, groups: int) -> Tensors:
    mixed = inner + 2 * groups * state
    return [
        ("ssm_in.weight", (width, inner + mixed + heads)),
        ("ssm_conv1d.weight", (conv, mixed)),
        ("ssm_conv1d.bias", (mixed,)),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (1, heads)),
        ("ssm_d", (1, heads)),
        ("ssm_norm.weight", (inner // groups, groups)),
        ("ssm_out.weight", (inner, width)),
    ]


def _blocks(blocks: Iterable[Tensors]) -> Tensors:
    return [(f"blk.{at}.{name}", dimensions) for at, block in enumerate(blocks) for name, dimensions in block]


def _keys(
    width: int, layers: int, inner: int | Sequence[int], heads: int, kv_heads: int | Sequence[int], *, trained: int
) -> dict[str, Value]:
    return {
        "context_length": trained,
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-5,
    }


def _lengths(length: int) -> dict[str, Value]:
    return {"attention.key_length": length, "attention.value_length": length}


# Families


def decoder(
    architecture: str,
    width: int,
    layers: int,
    inner: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    *,
    length: int = 0,
    trained: int = 131072,
    tied: bool = False,
    bias: bool = False,
    norms: bool = False,
    after: bool = False,
    joint: bool = False,
    experts: tuple[int, int, int] | None = None,
    more: Mapping[str, Value] | None = None,
) -> Shape:
    """Return a plain transformer: grouped heads, a gated feed-forward part or experts (count, used, inner).

    `norms` are those of queries and keys, `after` the ones behind each part, as Gemma has them; `joint` is one norm for
    attention and feed-forward together, as Cohere has it.
    """
    size = length or width // heads
    keys = _keys(width, layers, inner, heads, kv_heads, trained=trained) | (_lengths(length) if length else {})
    block = _norms(width, "attn_norm", *([] if joint else ["ffn_norm"]), *(["post_attention_norm", "post_ffw_norm"] if after else []))
    block += _attention(width, heads, kv_heads, size, bias=bias, norms=norms)
    if experts:
        count, used, expert_inner = experts
        keys |= {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": expert_inner}
        block += _experts(width, expert_inner, count)
    else:
        block += _dense(width, inner)
    tensors = _ends(width, vocabulary, tied=tied) + _blocks([block] * layers)
    return Shape(architecture, keys | dict(more or {}), vocabulary, tensors)


def gpt_oss(layers: int, experts: int) -> Shape:
    """Return gpt-oss: attention sinks, a window of 128 in every other layer, biases everywhere, experts in MXFP4."""
    width, heads, kv_heads, length, inner, vocabulary = 2880, 64, 8, 64, 2880, 201088
    keys = _keys(width, layers, inner, heads, kv_heads, trained=131072) | _lengths(length)
    keys |= {
        "expert_count": experts,
        "expert_used_count": 4,
        "expert_feed_forward_length": inner,
        "attention.sliding_window": 128,
        "rope.freq_base": 150000.0,
    }
    block = _norms(width, "attn_norm", "post_attention_norm") + _attention(width, heads, kv_heads, length, bias=True)
    block += [("attn_output.bias", (width,)), ("attn_sinks.weight", (heads,)), *_experts(width, inner, experts)]
    block += [("ffn_gate_inp.bias", (experts,)), ("ffn_down_exps.bias", (width, experts))]
    block += [("ffn_gate_exps.bias", (inner, experts)), ("ffn_up_exps.bias", (inner, experts))]
    return Shape("gpt-oss", keys, vocabulary, _ends(width, vocabulary) + _blocks([block] * layers))


def deepseek(width: int, layers: int, dense: int, heads: int, experts: int, *, query_rank: int = 0, latent: bool = True) -> Shape:
    """Return DeepSeek V2 / V3: the KV cache holds one latent vector per token, or heads in files from before that."""
    rank, rotated, plain, values, inner = 512, 64, 128, 128, 1408 if not query_rank else 2048
    keys = _keys(width, layers, 10944 if not query_rank else 18432, heads, 1 if latent else heads, trained=163840)
    keys |= {
        "attention.key_length": rank + rotated if latent else plain + rotated,
        "attention.value_length": rank if latent else values,
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated,
        "leading_dense_block_count": dense,
        "expert_count": experts,
        "expert_used_count": 6,
        "expert_feed_forward_length": inner,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
    }
    attention: Tensors = [
        ("attn_kv_a_mqa.weight", (width, rank + rotated)),
        ("attn_kv_a_norm.weight", (rank,)),
        ("attn_output.weight", (heads * values, width)),
    ]
    if latent:
        keys |= {"attention.key_length_mla": plain + rotated, "attention.value_length_mla": values}
        attention += [("attn_k_b.weight", (plain, rank, heads)), ("attn_v_b.weight", (rank, values, heads))]
    else:
        attention.append(("attn_kv_b.weight", (rank, heads * (plain + values))))
    if query_rank:
        keys |= {"attention.q_lora_rank": query_rank}
        attention += [("attn_q_a.weight", (width, query_rank)), ("attn_q_a_norm.weight", (query_rank,))]
        attention.append(("attn_q_b.weight", (query_rank, heads * (plain + rotated))))
    else:
        attention.append(("attn_q.weight", (width, heads * (plain + rotated))))
    attention += _norms(width, "attn_norm", "ffn_norm")
    first = attention + _dense(width, 10944 if not query_rank else 18432)
    rest = attention + _experts(width, inner, experts, shared=2 * inner)
    blocks = [first] * dense + [rest] * (layers - dense)
    return Shape("deepseek2", keys, 102400, _ends(width, 102400) + _blocks(blocks))


def mamba(width: int, layers: int, *, second: bool = False) -> Shape:
    """Return Mamba or Mamba 2: no KV cache at all, a state of fixed size per slot."""
    inner, state, groups, heads = 2 * width, 128 if second else 16, 8 if second else 0, 2 * width // 64
    rank = heads if second else width // 16
    keys = _keys(width, layers, 0, 0, 0, trained=1048576)
    keys |= {"ssm.conv_kernel": 4, "ssm.inner_size": inner, "ssm.state_size": state, "ssm.time_step_rank": rank}
    keys |= {"ssm.group_count": groups} if second else {}
    part = _mamba2(width, inner, state, 4, heads, groups) if second else _mamba(width, inner, state, 4, rank)
    tensors = _ends(width, 50280, tied=True) + _blocks([_norms(width, "attn_norm") + part] * layers)
    return Shape("mamba2" if second else "mamba", keys, 50280, tensors)


def jamba(width: int, layers: int, inner: int, heads: int, kv_heads: int) -> Shape:
    """Return Jamba: Mamba layers, and attention in one of eight."""
    kv_per_layer = [kv_heads if at % 8 == 4 else 0 for at in range(layers)]
    wide, state, rank = 2 * width, 16, width // 16
    keys = _keys(width, layers, inner, heads, kv_per_layer, trained=262144)
    keys |= {"ssm.conv_kernel": 4, "ssm.inner_size": wide, "ssm.state_size": state, "ssm.time_step_rank": rank}
    both = _norms(width, "attn_norm", "ffn_norm") + _dense(width, inner)
    recurrent = _mamba(width, wide, state, 4, rank) + _norms(rank, "ssm_dt_norm") + _norms(state, "ssm_b_norm", "ssm_c_norm")
    attention = _attention(width, heads, kv_heads, width // heads)
    blocks = [both + (attention if count else recurrent) for count in kv_per_layer]
    return Shape("jamba", keys, 65536, _ends(width, 65536) + _blocks(blocks))


def nemotron_h(pattern: str) -> Shape:
    """Return Nemotron-H 8B by its pattern of layers: M is Mamba 2, * attention, - feed-forward."""
    width, inner, heads, kv_heads, length, vocabulary = 4096, 21504, 32, 8, 128, 131072
    wide, state, groups, state_heads = 8192, 128, 8, 128
    kinds: dict[str, Tensors] = {
        "M": _mamba2(width, wide, state, 4, state_heads, groups),
        "*": _attention(width, heads, kv_heads, length),
        "-": _dense(width, inner, gate=False),
    }
    keys = _keys(
        width,
        len(pattern),
        [inner if kind == "-" else 0 for kind in pattern],
        heads,
        [kv_heads if kind == "*" else 0 for kind in pattern],
        trained=8192,
    )
    keys |= _lengths(length) | {"ssm.conv_kernel": 4, "ssm.inner_size": wide, "ssm.state_size": state}
    keys |= {"ssm.time_step_rank": state_heads, "ssm.group_count": groups, "rope.dimension_count": length}
    blocks = [_norms(width, "attn_norm") + kinds[kind] for kind in pattern]
    return Shape("nemotron_h", keys, vocabulary, _ends(width, vocabulary) + _blocks(blocks))


def granite_hybrid(layers: int) -> Shape:
    """Return Granite 4 hybrid (H-Micro): Mamba 2 layers, attention in one of ten, a feed-forward part in each."""
    width, inner, heads, kv_heads, vocabulary = 2048, 8192, 32, 8, 100352
    wide, state, state_heads = 4096, 128, 64
    kv_per_layer = [kv_heads if at % 10 == 5 else 0 for at in range(layers)]
    keys = _keys(width, layers, inner, heads, kv_per_layer, trained=131072)
    keys |= {"ssm.conv_kernel": 4, "ssm.inner_size": wide, "ssm.state_size": state, "ssm.time_step_rank": state_heads}
    keys |= {"ssm.group_count": 1, "rope.dimension_count": width // heads, "embedding_scale": 12.0, "residual_scale": 0.22}
    keys |= {"attention.scale": 0.015625, "logit_scale": 8.0}
    both = _norms(width, "attn_norm", "ffn_norm") + _dense(width, inner)
    recurrent = _mamba2(width, wide, state, 4, state_heads, 1)
    attention = _attention(width, heads, kv_heads, width // heads)
    blocks = [both + (attention if count else recurrent) for count in kv_per_layer]
    return Shape("granitehybrid", keys, vocabulary, _ends(width, vocabulary, tied=True) + _blocks(blocks))


def lfm2() -> Shape:
    """Return LFM2 1.2B: short convolutions, and attention in six of sixteen layers."""
    width, layers, inner, heads, vocabulary = 2048, 16, 8192, 32, 65536
    kv_per_layer = [8 if at in {2, 5, 8, 10, 12, 14} else 0 for at in range(layers)]
    keys = _keys(width, layers, inner, heads, kv_per_layer, trained=128000) | {"shortconv.l_cache": 3}
    both = _norms(width, "attn_norm", "ffn_norm") + _dense(width, inner)
    attention = _attention(width, heads, 8, width // heads, norms=True)
    convolution: Tensors = [
        ("shortconv.conv.weight", (3, width)),
        ("shortconv.in_proj.weight", (width, 3 * width)),
        ("shortconv.out_proj.weight", (width, width)),
    ]
    blocks = [both + (attention if count else convolution) for count in kv_per_layer]
    ends: Tensors = [("token_embd.weight", (width, vocabulary)), ("token_embd_norm.weight", (width,))]
    return Shape("lfm2", keys, vocabulary, ends + _blocks(blocks))


def qwen3next(layers: int, experts: int) -> Shape:
    """Return Qwen3-Next: gated delta nets, gated attention in one of four layers, many small experts."""
    width, heads, kv_heads, length, inner, vocabulary = 2048, 16, 2, 256, 512, 151936
    state, groups, value_heads = 128, 16, 32
    keys_size, values_size = groups * state, value_heads * state
    keys = _keys(width, layers, 5120, heads, kv_heads, trained=262144) | _lengths(length)
    keys |= {"expert_count": experts, "expert_used_count": 10, "expert_feed_forward_length": inner}
    keys |= {"expert_shared_feed_forward_length": inner, "rope.dimension_count": 64, "full_attention_interval": 4}
    keys |= {"ssm.conv_kernel": 4, "ssm.state_size": state, "ssm.group_count": groups}
    keys |= {"ssm.time_step_rank": value_heads, "ssm.inner_size": values_size}
    both = _norms(width, "attn_norm", "post_attention_norm") + _experts(width, inner, experts, shared=inner)
    both.append(("ffn_gate_inp_shexp.weight", (width,)))
    attention = [
        (name, (width, 2 * heads * length) if name == "attn_q.weight" else dimensions)
        for name, dimensions in _attention(width, heads, kv_heads, length, norms=True)
    ]
    delta: Tensors = [
        ("attn_qkv.weight", (width, 2 * keys_size + values_size)),
        ("attn_gate.weight", (width, values_size)),
        ("ssm_conv1d.weight", (4, 2 * keys_size + values_size)),
        ("ssm_dt.bias", (value_heads,)),
        ("ssm_a", (value_heads,)),
        ("ssm_ba.weight", (width, 2 * value_heads)),
        ("ssm_norm.weight", (state,)),
        ("ssm_out.weight", (values_size, width)),
    ]
    blocks = [both + (attention if at % 4 == 3 else delta) for at in range(layers)]
    return Shape("qwen3next", keys, vocabulary, _ends(width, vocabulary) + _blocks(blocks))


def phi3(width: int, layers: int, inner: int, heads: int, *, trained: int, window: int) -> Shape:
    """Return Phi-3: queries, keys and values in one tensor, and no grouped heads."""
    keys = _keys(width, layers, inner, heads, heads, trained=trained)
    keys |= {"rope.dimension_count": width // heads, "attention.sliding_window": window, "rope.scaling.original_context_length": 4096}
    block: Tensors = [
        *_norms(width, "attn_norm", "ffn_norm"),
        ("attn_qkv.weight", (width, 3 * width)),
        ("attn_output.weight", (width, width)),
        ("ffn_up.weight", (width, 2 * inner)),
        ("ffn_down.weight", (inner, width)),
    ]
    return Shape("phi3", keys, 32064, _ends(width, 32064) + _blocks([block] * layers))


def starcoder2(width: int, layers: int, heads: int, kv_heads: int) -> Shape:
    """Return StarCoder2: biases everywhere, no gate in the feed-forward part."""
    inner, vocabulary = 4 * width, 49152
    keys = _keys(width, layers, inner, heads, kv_heads, trained=16384)
    keys |= {"rope.dimension_count": width // heads}
    block = _norms(width, "attn_norm", "ffn_norm") + _attention(width, heads, kv_heads, width // heads, bias=True)
    block += _dense(width, inner, gate=False)
    block += [(f"{name}.bias", (width,)) for name in ("attn_norm", "ffn_norm", "attn_output", "ffn_down")]
    block.append(("ffn_up.bias", (inner,)))
    ends = [*_ends(width, vocabulary), ("output_norm.bias", (width,))]
    return Shape("starcoder2", keys, vocabulary, ends + _blocks([block] * layers))


def bert(width: int, layers: int, heads: int) -> Shape:
    """Return BERT: an encoder, which keeps no KV cache."""
    inner, vocabulary, trained = 4 * width, 30522, 512
    keys = _keys(width, layers, inner, heads, heads, trained=trained)
    keys |= {"attention.causal": False, "pooling_type": 2}
    block = _attention(width, heads, heads, width // heads, bias=True) + _dense(width, inner, gate=False)
    norms = ("attn_output_norm", "layer_output_norm")
    block += _norms(width, *norms) + [(f"{name}.bias", (width,)) for name in (*norms, "attn_output", "ffn_down")]
    block.append(("ffn_up.bias", (inner,)))
    ends: Tensors = [
        ("token_embd.weight", (width, vocabulary)),
        ("token_types.weight", (width, 2)),
        ("position_embd.weight", (width, trained)),
        ("token_embd_norm.weight", (width,)),
        ("token_embd_norm.bias", (width,)),
    ]
    return Shape("bert", keys, vocabulary, ends + _blocks([block] * layers), types=2)


def llama(width: int, layers: int, inner: int, heads: int, kv_heads: int, vocabulary: int = 128256, **more: bool) -> Shape:
    """Return Llama: `tied` where the output is the embedding."""
    return decoder("llama", width, layers, inner, heads, kv_heads, vocabulary, **more)  # type: ignore[arg-type] # flags


_GEMMA3: Final[Mapping[str, Value]] = {"attention.sliding_window": 1024, "rope.freq_base": 1e6}

SHAPES: Final[Mapping[str, Shape]] = {
    "llama-3.1-8b": llama(4096, 32, 14336, 32, 8),
    "llama-3.2-1b": llama(2048, 16, 8192, 32, 8, tied=True),
    "llama-tiny": llama(512, 4, 1536, 8, 2, 32000),
    "mistral-7b": decoder("llama", 4096, 32, 14336, 32, 8, 32000, trained=32768, more={"attention.sliding_window": 4096}),
    "mixtral-slim": decoder("llama", 4096, 4, 14336, 32, 8, 32000, experts=(8, 2, 14336)),
    "qwen2-7b": decoder("qwen2", 3584, 28, 18944, 28, 4, 152064, bias=True),
    "qwen2-0.5b": decoder("qwen2", 896, 24, 4864, 14, 2, 151936, bias=True, tied=True),
    "qwen3-4b": decoder("qwen3", 2560, 36, 9728, 32, 8, 151936, length=128, norms=True, tied=True),
    "qwen3-30b-a3b": decoder("qwen3moe", 2048, 48, 6144, 32, 4, 151936, length=128, norms=True, experts=(128, 8, 768)),
    "qwen3-moe-slim": decoder("qwen3moe", 2048, 8, 6144, 32, 4, 151936, length=128, norms=True, experts=(128, 8, 768)),
    "gemma-2b": decoder("gemma", 2048, 18, 16384, 8, 1, 256000, length=256, trained=8192, tied=True),
    "gemma2-9b": decoder(
        "gemma2", 3584, 42, 14336, 16, 8, 256000, length=256, trained=8192, tied=True, after=True,
        more={"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3-1b": decoder(
        "gemma3", 1152, 26, 6912, 4, 1, 262144, length=256, tied=True, norms=True, after=True,
        more={"attention.sliding_window": 512, "rope.freq_base": 1e6},
    ),
    "gemma3-4b": decoder(
        "gemma3", 2560, 34, 10240, 8, 4, 262208, length=256, tied=True, norms=True, after=True, more=_GEMMA3
    ),
    "gemma3-12b": decoder(
        "gemma3", 3840, 48, 15360, 16, 8, 262208, length=256, tied=True, norms=True, after=True, more=_GEMMA3
    ),
    "cohere2-7b": decoder(
        "cohere2", 4096, 32, 14336, 32, 8, 256000, length=128, tied=True, joint=True,
        more={"attention.sliding_window": 4096, "logit_scale": 0.25, "rope.dimension_count": 128},
    ),
    "gpt-oss-20b": gpt_oss(24, 32),
    "gpt-oss-slim": gpt_oss(6, 32),
    "deepseek-v2-lite": deepseek(2048, 27, 1, 16, 64),
    "deepseek-v2-slim": deepseek(2048, 27, 1, 16, 16),
    "deepseek-v2-slim-old": deepseek(2048, 27, 1, 16, 16, latent=False),
    "deepseek-v3-slim": deepseek(7168, 6, 1, 128, 8, query_rank=1536),
    "mamba-1.4b": mamba(2048, 48),
    "mamba2-1.3b": mamba(2048, 48, second=True),
    "jamba-3b": jamba(2560, 28, 8192, 20, 1),
    "nemotron-h-8b": nemotron_h("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"),
    "granite-h-micro": granite_hybrid(40),
    "lfm2-1.2b": lfm2(),
    "qwen3-next-slim": qwen3next(12, 64),
    "phi3-mini-4k": phi3(3072, 32, 8192, 32, trained=4096, window=2047),
    "starcoder2-3b": starcoder2(3072, 30, 24, 2),
    "bert-large": bert(1024, 24, 16),
}

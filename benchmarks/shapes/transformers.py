"""Models whose every layer has attention."""

from collections.abc import Mapping
from typing import NamedTuple

from shapes import parts
from shapes.hollow import Model, Tensors, Value


class Size(NamedTuple):
    """The six numbers that every model card has."""

    width: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int


def decoder(
    architecture: str,
    size: Size,
    *,
    length: int = 0,
    trained: int = 131072,
    tied: bool = False,
    bias: bool = False,
    normed: bool = False,
    after: bool = False,
    joint: bool = False,
    experts: tuple[int, int, int] | None = None,
    more: Mapping[str, Value] | None = None,
) -> Model:
    """Return a plain transformer: grouped heads, a gated feed-forward part or experts (count, used, inner).

    `normed` are queries and keys, `after` is for norms behind each part, as Gemma has them; `joint` is one norm for
    attention and feed-forward together, as Cohere has it.
    """
    width, layers, inner, heads, kv_heads, vocabulary = size
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=trained) | dict(more or {})
    keys |= parts.lengths(length) if length else {}
    block = parts.norms(width, "attn_norm")
    block += [] if joint else parts.norms(width, "ffn_norm")
    block += parts.norms(width, "post_attention_norm", "post_ffw_norm") if after else []
    block += parts.attention(width, heads, kv_heads, length or width // heads, bias=bias, normed=normed)
    if experts:
        keys |= parts.expert_numbers(*experts)
        block += parts.experts(width, inner=experts[2], count=experts[0])
    else:
        block += parts.dense(width, inner)
    tensors = parts.ends(width, vocabulary, tied=tied) + parts.numbered([block] * layers)
    return Model(architecture, keys, vocabulary, tensors)


def gemma2(size: Size) -> Model:
    """Return Gemma 2: a window of 4096 in every other layer."""
    more = {"attention.sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return decoder("gemma2", size, length=256, trained=8192, tied=True, after=True, more=more)


def gemma3(size: Size, window: int) -> Model:
    """Return Gemma 3: a window in five of six layers."""
    more = {"attention.sliding_window": window, "rope.freq_base": 1e6}
    return decoder("gemma3", size, length=256, tied=True, normed=True, after=True, more=more)


def cohere2(size: Size) -> Model:
    """Return Command R7B: a window of 4096 in three of four layers."""
    more = {"attention.sliding_window": 4096, "logit_scale": 0.25, "rope.dimension_count": 128}
    return decoder("cohere2", size, length=128, tied=True, joint=True, more=more)


def gpt_oss(layers: int, experts: int) -> Model:
    """Return gpt-oss: attention sinks, a window of 128 in every other layer, biases everywhere, experts in MXFP4."""
    width, heads, kv_heads, length, inner, vocabulary = 2880, 64, 8, 64, 2880, 201088
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=131072) | parts.lengths(length)
    keys |= parts.expert_numbers(experts, 4, inner)
    keys |= {"attention.sliding_window": 128, "rope.freq_base": 150000.0}
    block = parts.norms(width, "attn_norm", "post_attention_norm") + parts.attention(
        width, heads, kv_heads, length, bias=True
    )
    block += [("attn_output.bias", (width,)), ("attn_sinks.weight", (heads,)), *parts.experts(width, inner, experts)]
    block += [("ffn_gate_inp.bias", (experts,)), ("ffn_down_exps.bias", (width, experts))]
    block += [("ffn_gate_exps.bias", (inner, experts)), ("ffn_up_exps.bias", (inner, experts))]
    return Model("gpt-oss", keys, vocabulary, parts.ends(width, vocabulary) + parts.numbered([block] * layers))


def deepseek(
    width: int, layers: int, dense: int, heads: int, experts: int, *, query_rank: int = 0, latent: bool = True
) -> Model:
    """Return DeepSeek V2 / V3: the KV cache holds one latent vector per token, or heads in files from before that.

    The first `dense` layers have no experts. The engine takes one without `query_rank` for a Lite by its 27 layers.
    """
    rank, rotated, plain, values = 512, 64, 128, 128
    inner, expert_inner = (18432, 2048) if query_rank else (10944, 1408)
    keys = parts.numbers(width, layers, inner, heads, 1 if latent else heads, trained=163840)
    keys |= parts.expert_numbers(experts, 6, expert_inner) | {"expert_shared_count": 2, "expert_weights_scale": 1.0}
    keys |= {
        "attention.key_length": rank + rotated if latent else plain + rotated,
        "attention.value_length": rank if latent else values,
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated,
        "leading_dense_block_count": dense,
    }
    attention: Tensors = [
        *parts.norms(width, "attn_norm", "ffn_norm"),
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
    first = attention + parts.dense(width, inner)
    rest = attention + parts.experts(width, expert_inner, experts, shared=2 * expert_inner)
    blocks = [first] * dense + [rest] * (layers - dense)
    return Model("deepseek2", keys, 102400, parts.ends(width, 102400) + parts.numbered(blocks))


def llama4(layers: int, experts: int) -> Model:
    """Return Llama 4 Scout: attention within chunks of 8192 tokens in three of four layers, one expert at a time."""
    width, inner, expert_inner, heads, kv_heads, length, vocabulary = 5120, 16384, 8192, 40, 8, 128, 202048
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=10485760) | parts.lengths(length)
    keys |= parts.expert_numbers(experts, 1, expert_inner)
    keys |= {"interleave_moe_layer_step": 1, "rope.dimension_count": length}
    block = parts.norms(width, "attn_norm", "ffn_norm") + parts.attention(width, heads, kv_heads, length)
    block += parts.experts(width, expert_inner, experts, shared=expert_inner)
    return Model("llama4", keys, vocabulary, parts.ends(width, vocabulary) + parts.numbered([block] * layers))


def glm4_moe(layers: int, experts: int) -> Model:
    """Return GLM-4.5 Air: the last block only guesses ahead, and the first has no experts."""
    width, inner, expert_inner, heads, kv_heads, length, vocabulary = 4096, 10944, 1408, 96, 8, 128, 151552
    keys = parts.numbers(width, layers + 1, inner, heads, kv_heads, trained=131072) | parts.lengths(length)
    keys |= parts.expert_numbers(experts, 8, expert_inner)
    keys |= {
        "expert_shared_count": 1,
        "leading_dense_block_count": 1,
        "expert_gating_func": 2,
        "nextn_predict_layers": 1,
    }
    keys |= {"rope.dimension_count": 64, "expert_weights_scale": 1.0, "expert_weights_norm": True}
    both = parts.norms(width, "attn_norm", "post_attention_norm") + parts.attention(
        width, heads, kv_heads, length, bias=True
    )
    rest = both + parts.experts(width, expert_inner, experts, shared=expert_inner) + [("exp_probs_b.bias", (experts,))]
    last: Tensors = [("nextn.eh_proj.weight", (2 * width, width)), ("nextn.embed_tokens.weight", (width, vocabulary))]
    last += parts.norms(width, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")
    last.append(("nextn.shared_head_head.weight", (width, vocabulary)))
    blocks = [both + parts.dense(width, inner), *[rest] * (layers - 1), rest + last]
    return Model("glm4moe", keys, vocabulary, parts.ends(width, vocabulary) + parts.numbered(blocks))


def gemma3n() -> Model:
    """Return Gemma 3n E2B: an embedding for each layer, four streams, the last ten layers share a KV cache."""
    width, layers, inner, heads, kv_heads, length, vocabulary = 2048, 30, 8192, 8, 2, 256, 262144
    streams, small, rank = 4, 256, 64
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=32768) | parts.lengths(length)
    keys |= {
        "attention.sliding_window": 512,
        "attention.shared_kv_layers": 10,
        "embedding_length_per_layer_input": small,
    }
    keys |= {"attention.sliding_window_pattern": [at % 5 < 4 for at in range(layers)]}
    keys |= {"altup.num_inputs": streams, "altup.active_idx": 0, "rope.freq_base": 1e6}
    block = parts.norms(width, "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
    block += parts.attention(width, heads, kv_heads, length, normed=True) + parts.dense(width, inner)
    block += [("inp_gate.weight", (width, small)), ("proj.weight", (small, width))]
    block += [("altup_correct_coef.weight", (streams, streams)), ("altup_predict_coef.weight", (streams, streams**2))]
    block += [
        ("altup_router.weight", (width, streams)),
        ("laurel_l.weight", (width, rank)),
        ("laurel_r.weight", (rank, width)),
    ]
    block += parts.norms(width, "post_norm", "altup_correct_scale", "altup_router_norm", "laurel_post_norm")
    ends = parts.ends(width, vocabulary, tied=True)
    ends += [("per_layer_token_embd.weight", (small * layers, vocabulary)), ("per_layer_proj_norm.weight", (small,))]
    ends.append(("per_layer_model_proj.weight", (width, small * layers)))
    ends += [(f"{name}.weight", (width, width, streams - 1)) for name in ("altup_proj", "altup_unembd_proj")]
    return Model("gemma3n", keys, vocabulary, ends + parts.numbered([block] * layers))


def gemma4(layers: int) -> Model:
    """Return a Gemma 4 of 31B: wider heads and fewer of them in the layers without a window."""
    width, inner, heads, vocabulary = 5376, 21504, 32, 262144
    windowed = [at % 6 != 5 for at in range(layers)]
    keys = parts.numbers(width, layers, inner, heads, [16 if near else 4 for near in windowed], trained=262144)
    keys |= parts.lengths(512) | {"attention.key_length_swa": 256, "attention.value_length_swa": 256}
    keys |= {"attention.sliding_window": 1024, "attention.sliding_window_pattern": windowed, "rope.freq_base": 1e6}
    keys |= {"rope.freq_base_swa": 1e4, "rope.dimension_count": 512, "rope.dimension_count_swa": 256}
    keys |= {"attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0, "final_logit_softcapping": 30.0}
    both = parts.norms(width, "attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm") + parts.dense(
        width, inner
    )
    near = parts.attention(width, heads, 16, 256, normed=True)
    far = [row for row in parts.attention(width, heads, 4, 512, normed=True) if row[0] != "attn_v.weight"]
    blocks = [both + [("layer_output_scale.weight", (1,))] + (near if window else far) for window in windowed]
    ends = [*parts.ends(width, vocabulary, tied=True), ("rope_freqs.weight", (256,))]
    return Model("gemma4", keys, vocabulary, ends + parts.numbered(blocks))


def phi3(width: int, layers: int, inner: int, heads: int, *, trained: int, window: int) -> Model:
    """Return Phi-3: queries, keys and values in one tensor, and no grouped heads."""
    keys = parts.numbers(width, layers, inner, heads, heads, trained=trained)
    keys |= {
        "rope.dimension_count": width // heads,
        "attention.sliding_window": window,
        "rope.scaling.original_context_length": 4096,
    }
    block: Tensors = [
        *parts.norms(width, "attn_norm", "ffn_norm"),
        ("attn_qkv.weight", (width, 3 * width)),
        ("attn_output.weight", (width, width)),
        ("ffn_up.weight", (width, 2 * inner)),
        ("ffn_down.weight", (inner, width)),
    ]
    return Model("phi3", keys, 32064, parts.ends(width, 32064) + parts.numbered([block] * layers))


def starcoder2(width: int, layers: int, heads: int, kv_heads: int) -> Model:
    """Return StarCoder2: biases everywhere, no gate in the feed-forward part."""
    inner, vocabulary = 4 * width, 49152
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=16384)
    keys |= {"rope.dimension_count": width // heads}
    block = parts.norms(width, "attn_norm", "ffn_norm") + parts.attention(
        width, heads, kv_heads, width // heads, bias=True
    )
    block += parts.dense(width, inner, gate=False)
    block += [(f"{name}.bias", (width,)) for name in ("attn_norm", "ffn_norm", "attn_output", "ffn_down")]
    block.append(("ffn_up.bias", (inner,)))
    ends = [*parts.ends(width, vocabulary), ("output_norm.bias", (width,))]
    return Model("starcoder2", keys, vocabulary, ends + parts.numbered([block] * layers))


def t5_encoder(width: int, layers: int, inner: int, heads: int) -> Model:
    """Return the encoder of a T5: no rotated positions, but a bias by distance, whose table is in the first block."""
    vocabulary, length = 32128, 64
    keys = parts.numbers(width, layers, inner, heads, heads, trained=512) | parts.lengths(length)
    keys |= {"attention.relative_buckets_count": 32}
    block = parts.norms(width, "attn_norm", "ffn_norm") + parts.attention(width, heads, heads, length)
    block += parts.dense(width, inner)
    blocks = parts.numbered([[*block, ("attn_rel_b.weight", (heads, 32))], *[block] * (layers - 1)])
    ends: Tensors = [("token_embd.weight", (width, vocabulary)), ("enc.output_norm.weight", (width,))]
    ends += [(f"enc.{name.replace('attn_output', 'attn_o')}", sizes) for name, sizes in blocks]
    return Model("t5encoder", keys, vocabulary, ends)


def bert(width: int, layers: int, heads: int) -> Model:
    """Return BERT: an encoder, which keeps no KV cache."""
    inner, vocabulary, trained = 4 * width, 30522, 512
    keys = parts.numbers(width, layers, inner, heads, heads, trained=trained)
    keys |= {"attention.causal": False, "pooling_type": 2}
    block = parts.attention(width, heads, heads, width // heads, bias=True) + parts.dense(width, inner, gate=False)
    norms = ("attn_output_norm", "layer_output_norm")
    block += parts.norms(width, *norms) + [(f"{name}.bias", (width,)) for name in (*norms, "attn_output", "ffn_down")]
    block.append(("ffn_up.bias", (inner,)))
    ends: Tensors = [
        ("token_embd.weight", (width, vocabulary)),
        ("token_types.weight", (width, 2)),
        ("position_embd.weight", (width, trained)),
        ("token_embd_norm.weight", (width,)),
        ("token_embd_norm.bias", (width,)),
    ]
    return Model("bert", keys, vocabulary, ends + parts.numbered([block] * layers), types=2)

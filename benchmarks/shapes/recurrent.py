"""Models that keep a state of fixed size in some or all of their layers, instead of a KV cache or in addition."""

from shapes import parts
from shapes.hollow import Model, Tensors


def mamba(width: int, layers: int, *, second: bool = False) -> Model:
    """Return Mamba or Mamba 2: no KV cache at all, a state of fixed size per slot."""
    inner, state, groups, heads = 2 * width, 128 if second else 16, 8 if second else 0, 2 * width // 64
    rank = heads if second else width // 16
    keys = parts.numbers(width, layers, 0, 0, 0, trained=1048576)
    keys |= parts.state_space(inner, state, rank, groups=groups)
    part = parts.mamba2(width, inner, state, heads, groups) if second else parts.mamba(width, inner, state, rank)
    tensors = parts.ends(width, 50280, tied=True) + parts.numbered([parts.norms(width, "attn_norm") + part] * layers)
    return Model("mamba2" if second else "mamba", keys, 50280, tensors)


def jamba(width: int, layers: int, inner: int, heads: int, kv_heads: int) -> Model:
    """Return Jamba: Mamba layers, and attention in one of eight."""
    kv_per_layer = [kv_heads if at % 8 == 4 else 0 for at in range(layers)]
    wide, state, rank = 2 * width, 16, width // 16
    keys = parts.numbers(width, layers, inner, heads, kv_per_layer, trained=262144)
    keys |= parts.state_space(wide, state, rank)
    both = parts.norms(width, "attn_norm", "ffn_norm") + parts.dense(width, inner)
    recurrent = (
        parts.mamba(width, wide, state, rank)
        + parts.norms(rank, "ssm_dt_norm")
        + parts.norms(state, "ssm_b_norm", "ssm_c_norm")
    )
    attention = parts.attention(width, heads, kv_heads, width // heads)
    blocks = [both + (attention if count else recurrent) for count in kv_per_layer]
    return Model("jamba", keys, 65536, parts.ends(width, 65536) + parts.numbered(blocks))


def nemotron_h(pattern: str) -> Model:
    """Return Nemotron-H 8B by its pattern of layers: M is Mamba 2, * attention, - feed-forward."""
    width, inner, heads, kv_heads, length, vocabulary = 4096, 21504, 32, 8, 128, 131072
    wide, state, groups, state_heads = 8192, 128, 8, 128
    kinds: dict[str, Tensors] = {
        "M": parts.mamba2(width, wide, state, state_heads, groups),
        "*": parts.attention(width, heads, kv_heads, length),
        "-": parts.dense(width, inner, gate=False),
    }
    keys = parts.numbers(
        width,
        len(pattern),
        [inner if kind == "-" else 0 for kind in pattern],
        heads,
        [kv_heads if kind == "*" else 0 for kind in pattern],
        trained=8192,
    )
    keys |= parts.lengths(length) | parts.state_space(wide, state, state_heads, groups=groups)
    keys |= {"rope.dimension_count": length}
    blocks = [parts.norms(width, "attn_norm") + kinds[kind] for kind in pattern]
    return Model("nemotron_h", keys, vocabulary, parts.ends(width, vocabulary) + parts.numbered(blocks))


def granite_hybrid(layers: int) -> Model:
    """Return Granite 4 hybrid (H-Micro): Mamba 2 layers, attention in one of ten, a feed-forward part in each."""
    width, inner, heads, kv_heads, vocabulary = 2048, 8192, 32, 8, 100352
    wide, state, state_heads = 4096, 128, 64
    kv_per_layer = [kv_heads if at % 10 == 5 else 0 for at in range(layers)]
    keys = parts.numbers(width, layers, inner, heads, kv_per_layer, trained=131072)
    keys |= parts.state_space(wide, state, state_heads, groups=1)
    keys |= {"rope.dimension_count": width // heads, "attention.scale": 0.015625, "logit_scale": 8.0}
    keys |= {"embedding_scale": 12.0, "residual_scale": 0.22}
    both = parts.norms(width, "attn_norm", "ffn_norm") + parts.dense(width, inner)
    recurrent = parts.mamba2(width, wide, state, state_heads, 1)
    attention = parts.attention(width, heads, kv_heads, width // heads)
    blocks = [both + (attention if count else recurrent) for count in kv_per_layer]
    return Model("granitehybrid", keys, vocabulary, parts.ends(width, vocabulary, tied=True) + parts.numbered(blocks))


def falcon_h1() -> Model:
    """Return Falcon-H1 1.5B: attention and Mamba 2 side by side in each layer."""
    width, layers, inner, heads, kv_heads, length, vocabulary = 2048, 24, 4096, 8, 2, 128, 65537
    wide, state, state_heads = 3072, 256, 48
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=131072) | parts.lengths(length)
    keys |= parts.state_space(wide, state, state_heads, groups=1)
    block = (
        parts.norms(width, "attn_norm") + parts.attention(width, heads, kv_heads, length) + parts.dense(width, inner)
    )
    block += [("ffn_norm", (width,)), *parts.mamba2(width, wide, state, state_heads, 1)]  # it has no suffix
    return Model("falcon-h1", keys, vocabulary, parts.ends(width, vocabulary) + parts.numbered([block] * layers))


def lfm2() -> Model:
    """Return LFM2 1.2B: short convolutions, and attention in six of sixteen layers."""
    width, layers, inner, heads, vocabulary = 2048, 16, 8192, 32, 65536
    kv_per_layer = [8 if at in {2, 5, 8, 10, 12, 14} else 0 for at in range(layers)]
    keys = parts.numbers(width, layers, inner, heads, kv_per_layer, trained=128000) | {"shortconv.l_cache": 3}
    both = parts.norms(width, "attn_norm", "ffn_norm") + parts.dense(width, inner)
    attention = parts.attention(width, heads, 8, width // heads, normed=True)
    convolution: Tensors = [
        ("shortconv.conv.weight", (3, width)),
        ("shortconv.in_proj.weight", (width, 3 * width)),
        ("shortconv.out_proj.weight", (width, width)),
    ]
    blocks = [both + (attention if count else convolution) for count in kv_per_layer]
    ends: Tensors = [("token_embd.weight", (width, vocabulary)), ("token_embd_norm.weight", (width,))]
    return Model("lfm2", keys, vocabulary, ends + parts.numbered(blocks))


def qwen3next(layers: int, experts: int) -> Model:
    """Return Qwen3-Next: gated delta nets, gated attention in one of four layers, many small experts."""
    width, heads, kv_heads, length, inner, vocabulary = 2048, 16, 2, 256, 512, 151936
    state, groups, value_heads = 128, 16, 32
    keys_size, values_size = groups * state, value_heads * state
    keys = parts.numbers(width, layers, 5120, heads, kv_heads, trained=262144) | parts.lengths(length)
    keys |= parts.expert_numbers(experts, 10, inner)
    keys |= {"expert_shared_feed_forward_length": inner, "rope.dimension_count": 64, "full_attention_interval": 4}
    keys |= parts.state_space(values_size, state, value_heads, groups=groups)
    both = parts.norms(width, "attn_norm", "post_attention_norm") + parts.experts(width, inner, experts, shared=inner)
    both.append(("ffn_gate_inp_shexp.weight", (width,)))
    attention = parts.gated_attention(width, heads, kv_heads, length)
    delta = parts.delta_net(width, keys_size, values_size, state, value_heads)
    delta.append(("ssm_ba.weight", (width, 2 * value_heads)))
    blocks = [both + (attention if at % 4 == 3 else delta) for at in range(layers)]
    return Model("qwen3next", keys, vocabulary, parts.ends(width, vocabulary) + parts.numbered(blocks))


def qwen35() -> Model:
    """Return a dense Qwen3.5 of 4B: as Qwen3-Next, but with a plain feed-forward part in each layer."""
    width, layers, inner, heads, kv_heads, length, vocabulary = 2560, 32, 9216, 16, 4, 256, 248320
    state, groups, value_heads = 128, 16, 32
    keys_size, values_size = groups * state, value_heads * state
    keys = parts.numbers(width, layers, inner, heads, kv_heads, trained=262144) | parts.lengths(length)
    keys |= {"rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "full_attention_interval": 4}
    keys |= parts.state_space(values_size, state, value_heads, groups=groups)
    both = parts.norms(width, "attn_norm", "post_attention_norm") + parts.dense(width, inner)
    attention = parts.gated_attention(width, heads, kv_heads, length)
    delta = parts.delta_net(width, keys_size, values_size, state, value_heads)
    delta += [("ssm_alpha.weight", (width, value_heads)), ("ssm_beta.weight", (width, value_heads))]
    blocks = [both + (attention if at % 4 == 3 else delta) for at in range(layers)]
    return Model("qwen35", keys, vocabulary, parts.ends(width, vocabulary, tied=True) + parts.numbered(blocks))

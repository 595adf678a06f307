"""Tensors that architectures have in common, and the keys that all architectures have."""

from collections.abc import Iterable, Sequence
from typing import Final

from shapes.hollow import Tensors, Value

CONVOLUTION: Final = 4
"""Tokens that the convolution in front of a recurrent state spans, in all these models."""


def ends(width: int, vocabulary: int, *, tied: bool = False) -> Tensors:
    """Return what comes before and after the blocks; a tied output is the embedding once more."""
    found: Tensors = [("token_embd.weight", (width, vocabulary)), ("output_norm.weight", (width,))]
    return found if tied else [*found, ("output.weight", (width, vocabulary))]


def norms(width: int, *names: str) -> Tensors:
    """Return one vector under each name."""
    return [(f"{name}.weight", (width,)) for name in names]


def attention(
    width: int, heads: int, kv_heads: int, length: int, *, bias: bool = False, normed: bool = False
) -> Tensors:
    """Return queries, keys, values and output, of heads of this length; `normed` are queries and keys."""
    sizes = {"q": heads * length, "k": kv_heads * length, "v": kv_heads * length}
    found: Tensors = [(f"attn_{name}.weight", (width, size)) for name, size in sizes.items()]
    found.append(("attn_output.weight", (heads * length, width)))
    if bias:
        found += [(f"attn_{name}.bias", (size,)) for name, size in sizes.items()]
    return found + norms(length, "attn_q_norm", "attn_k_norm") if normed else found


def gated_attention(width: int, heads: int, kv_heads: int, length: int) -> Tensors:
    """Return attention whose queries bring a gate of the same size."""
    plain = attention(width, heads, kv_heads, length, normed=True)
    return [(name, (width, 2 * heads * length) if name == "attn_q.weight" else sizes) for name, sizes in plain]


def dense(width: int, inner: int, *, gate: bool = True) -> Tensors:
    """Return a plain feed-forward part."""
    found: Tensors = [("ffn_up.weight", (width, inner)), ("ffn_down.weight", (inner, width))]
    return [("ffn_gate.weight", (width, inner)), *found] if gate else found


def experts(width: int, inner: int, count: int, *, shared: int = 0) -> Tensors:
    """Return a feed-forward part of experts; `shared` is the inner size of the one that sees every token."""
    found: Tensors = [
        ("ffn_gate_inp.weight", (width, count)),
        ("ffn_gate_exps.weight", (width, inner, count)),
        ("ffn_up_exps.weight", (width, inner, count)),
        ("ffn_down_exps.weight", (inner, width, count)),
    ]
    always = [(name.replace(".", "_shexp."), sizes) for name, sizes in dense(width, shared)] if shared else []
    return found + always


def mamba(width: int, inner: int, state: int, rank: int) -> Tensors:
    """Return a Mamba layer that looks back over four tokens."""
    return [
        ("ssm_in.weight", (width, 2 * inner)),
        ("ssm_conv1d.weight", (CONVOLUTION, inner)),
        ("ssm_conv1d.bias", (inner,)),
        ("ssm_x.weight", (inner, rank + 2 * state)),
        ("ssm_dt.weight", (rank, inner)),
        ("ssm_dt.bias", (inner,)),
        ("ssm_a", (state, inner)),
        ("ssm_d", (inner,)),
        ("ssm_out.weight", (inner, width)),
    ]


def mamba2(width: int, inner: int, state: int, heads: int, groups: int) -> Tensors:
    """Return a Mamba 2 layer that looks back over four tokens."""
    mixed = inner + 2 * groups * state
    return [
        ("ssm_in.weight", (width, inner + mixed + heads)),
        ("ssm_conv1d.weight", (CONVOLUTION, mixed)),
        ("ssm_conv1d.bias", (mixed,)),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (1, heads)),
        ("ssm_d", (1, heads)),
        ("ssm_norm.weight", (inner // groups, groups)),
        ("ssm_out.weight", (inner, width)),
    ]


def delta_net(width: int, keys_size: int, values_size: int, state: int, heads: int) -> Tensors:
    """Return a gated delta net, without what makes its decay."""
    return [
        ("attn_qkv.weight", (width, 2 * keys_size + values_size)),
        ("attn_gate.weight", (width, values_size)),
        ("ssm_conv1d.weight", (CONVOLUTION, 2 * keys_size + values_size)),
        ("ssm_dt.bias", (heads,)),
        ("ssm_a", (heads,)),
        ("ssm_norm.weight", (state,)),
        ("ssm_out.weight", (values_size, width)),
    ]


def numbered(blocks: Iterable[Tensors]) -> Tensors:
    """Return the tensors of blocks under their full names."""
    return [(f"blk.{at}.{name}", sizes) for at, block in enumerate(blocks) for name, sizes in block]


def numbers(
    width: int, layers: int, inner: int | Sequence[int], heads: int, kv_heads: int | Sequence[int], *, trained: int
) -> dict[str, Value]:
    """Return the keys that all architectures have; a list has one number for each layer."""
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


def expert_numbers(count: int, used: int, inner: int) -> dict[str, Value]:
    """Return the keys for experts, of which some are used for each token."""
    return {"expert_count": count, "expert_used_count": used, "expert_feed_forward_length": inner}


def state_space(inner: int, state: int, rank: int, *, groups: int = 0) -> dict[str, Value]:
    """Return the keys for layers with a recurrent state; the rank is the number of heads where there are any."""
    keys: dict[str, Value] = {"ssm.conv_kernel": CONVOLUTION, "ssm.inner_size": inner}
    keys |= {"ssm.state_size": state, "ssm.time_step_rank": rank}
    return keys | {"ssm.group_count": groups} if groups else keys


def lengths(length: int) -> dict[str, Value]:
    """Return the keys for heads whose length is not the width divided by their number."""
    return {"attention.key_length": length, "attention.value_length": length}

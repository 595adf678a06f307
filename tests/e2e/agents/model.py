"""A tiny GGUF model with a long context, a chat template as strict as Qwen's, and one answer to every prompt.

It computes nothing of a prompt but its length: each token is followed by `Done`, and that one by the end of the turn.
"""

import re
from collections import Counter
from pathlib import Path

import gguf
import numpy as np

CONTEXT = 131_072
ANSWER = "Done"
WIDTH = 32
_END, _START, _BOS = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
_LOGIT = 8.0

TEMPLATE = """\
{%- set ns = namespace(text='') -%}
{%- if messages[0].role == 'system' %}{% set ns.text = messages[0].content %}{% endif -%}
{%- if tools %}{{ '<|im_start|>system\n' + ns.text + '\n# Tools\n<tools>' }}
{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor -%}
{{ '\n</tools>\nA call is <tool_call>{"name": NAME, "arguments": {}}</tool_call><|im_end|>\n' }}
{%- elif ns.text %}{{ '<|im_start|>system\n' + ns.text + '<|im_end|>\n' }}{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif -%}
{%- elif message.role == 'user' -%}
{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' -%}
{{ '<|im_start|>assistant\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- elif message.role == 'tool' -%}
{{ '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- else %}{{ raise_exception('Unexpected message role.') }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
"""


def write_model(path: Path) -> None:
    """Write the model."""
    special = [_BOS, _START, _END]
    words = [ANSWER, *common_words()]
    tokens = [*special, *(f"\\x{byte:02x}" for byte in range(256)), *words]
    answer, end = len(special) + 256, special.index(_END)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("rwkv")  # the longest match at each byte
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * (256 + len(words)))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    embedding = np.zeros((len(tokens), WIDTH), np.float32)
    embedding[:, 0] = 1
    embedding[answer, :2] = 0, 1
    output = np.zeros_like(embedding)
    output[answer, 0] = output[end, 1] = _LOGIT
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    square, one = np.zeros((WIDTH, WIDTH), np.float32), np.ones(WIDTH, np.float32)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", one)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{name}.weight", square)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def common_words() -> list[str]:
    """Return the most common words of the documentation, with and without a space before."""
    docs = Path(__file__).parents[3] / "docs"
    text = "".join(page.read_text() for page in sorted(docs.rglob("*.md")))
    counts = Counter(re.findall(r" ?[A-Za-z]{2,}|\n +", text))
    return [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:4000] if word != ANSWER]

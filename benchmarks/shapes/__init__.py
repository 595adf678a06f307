"""GGUF files of real models' shapes whose weights are a hole in the file: an 8B model takes a few MiB of the disk.

An engine cannot tell: names, sizes and types of the tensors, hyperparameters and the size of the vocabulary are those
of the published models, so it allocates what it would for them. Its answers would be noise, since all weights read
as zeros. Sources of the figures are the models' own `config.json` files, and llama.cpp's list of tensors for each
architecture (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-arch.cpp).
"""

from collections.abc import Mapping
from typing import Final

from shapes.hollow import Model
from shapes.recurrent import falcon_h1, granite_hybrid, jamba, lfm2, mamba, nemotron_h, qwen3next, qwen35
from shapes.transformers import (
    Size,
    bert,
    cohere2,
    decoder,
    deepseek,
    gemma2,
    gemma3,
    gemma3n,
    gemma4,
    glm4_moe,
    gpt_oss,
    llama4,
    phi3,
    starcoder2,
    t5_encoder,
)

_WHOLE: Final[Mapping[str, bool]] = {"attention.causal": False}
_POOLED: Final[Mapping[str, bool | int]] = {**_WHOLE, "pooling_type": 1}
_MIXTRAL, _QWEN3_MOE = (8, 2, 14336), (128, 8, 768)

SHAPES: Final[Mapping[str, Model]] = {
    "llama-3.1-8b": decoder("llama", Size(4096, 32, 14336, 32, 8, 128256)),
    "llama-3.2-1b": decoder("llama", Size(2048, 16, 8192, 32, 8, 128256), tied=True),
    "llama-tiny": decoder("llama", Size(512, 4, 1536, 8, 2, 32000)),
    "mistral-7b": decoder("llama", Size(4096, 32, 14336, 32, 8, 32000), more={"attention.sliding_window": 4096}),
    "mixtral-slim": decoder("llama", Size(4096, 4, 14336, 32, 8, 32000), experts=_MIXTRAL),
    "qwen2-7b": decoder("qwen2", Size(3584, 28, 18944, 28, 4, 152064), bias=True),
    "qwen2-0.5b": decoder("qwen2", Size(896, 24, 4864, 14, 2, 151936), bias=True, tied=True),
    "qwen3-4b": decoder("qwen3", Size(2560, 36, 9728, 32, 8, 151936), length=128, normed=True, tied=True),
    "qwen3-moe-slim": decoder(
        "qwen3moe", Size(2048, 8, 6144, 32, 4, 151936), length=128, normed=True, experts=_QWEN3_MOE
    ),
    "gemma-2b": decoder("gemma", Size(2048, 18, 16384, 8, 1, 256000), length=256, trained=8192, tied=True),
    "gemma2-9b": gemma2(Size(3584, 42, 14336, 16, 8, 256000)),
    "gemma3-1b": gemma3(Size(1152, 26, 6912, 4, 1, 262144), window=512),
    "gemma3-4b": gemma3(Size(2560, 34, 10240, 8, 4, 262208), window=1024),
    "gemma3n-e2b": gemma3n(),
    "gemma4-slim": gemma4(12),
    "cohere2-7b": cohere2(Size(4096, 32, 14336, 32, 8, 256000)),
    "gpt-oss-slim": gpt_oss(6, 32),
    "deepseek-v2-slim": deepseek(2048, 27, 1, 16, 16),
    "deepseek-v2-slim-old": deepseek(2048, 27, 1, 16, 16, latent=False),
    "deepseek-v3-slim": deepseek(7168, 6, 1, 128, 8, query_rank=1536),
    "llama4-slim": llama4(4, 4),
    "glm4-moe-slim": glm4_moe(6, 16),
    "phi3-mini-4k": phi3(3072, 32, 8192, 32, trained=4096, window=2047),
    "starcoder2-3b": starcoder2(3072, 30, 24, 2),
    "bert-large": bert(1024, 24, 16),
    "t5-large-encoder": t5_encoder(1024, 24, 2816, 16),
    "eurobert-210m": decoder("eurobert", Size(768, 12, 3072, 12, 12, 128256), trained=8192, tied=True, more=_POOLED),
    "embeddinggemma-300m": decoder(
        "gemma-embedding",
        Size(768, 24, 1152, 3, 1, 262144),
        length=256,
        trained=2048,
        tied=True,
        normed=True,
        after=True,
        more={**_POOLED, "attention.sliding_window": 512},
    ),
    "dream-slim": decoder("dream", Size(3584, 4, 18944, 28, 4, 152064), bias=True, more=_WHOLE),
    "llada-slim": decoder("llada", Size(4096, 4, 12288, 32, 32, 126464), trained=4096, more=_WHOLE),
    "llada-moe-slim": decoder(
        "llada-moe", Size(2048, 4, 8192, 16, 16, 157184), trained=4096, normed=True, experts=(16, 8, 1024), more=_WHOLE
    ),
    "rnd1-slim": decoder(
        "rnd1", Size(2048, 4, 6144, 32, 4, 151936), length=128, normed=True, experts=(16, 8, 768), more=_WHOLE
    ),
    "mamba-1.4b": mamba(2048, 48),
    "mamba2-1.3b": mamba(2048, 48, second=True),
    "jamba-3b": jamba(2560, 28, 8192, 20, 1),
    "nemotron-h-8b": nemotron_h("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"),
    "granite-h-micro": granite_hybrid(40),
    "falcon-h1-1.5b": falcon_h1(),
    "lfm2-1.2b": lfm2(),
    "qwen3-next-slim": qwen3next(12, 64),
    "qwen3.5-4b": qwen35(),
}
"""By the names of the published models; a `slim` one has fewer layers or experts, which changes no layer."""

"""How full a KV cache is, by what llama.cpp's server says at /slots."""

import json

import pytest

from llmkube.router.health.cache_use import CacheUse, cache_use

IDLE = {"id": 0, "n_ctx": 512, "speculative": False, "is_processing": False}
LAST = IDLE | {"id_task": 1, "n_prompt_tokens": 453, "n_prompt_tokens_processed": 53, "n_prompt_tokens_cache": 400}
BUSY = LAST | {"is_processing": True, "next_token": [{"has_next_token": True, "n_decoded": 11}]}
"""As llama.cpp's server says it in the middle of an answer: 400 tokens were cached, 53 read, 11 written."""


@pytest.mark.parametrize(
    ("slots", "splits", "use"),
    [
        ([IDLE], True, CacheUse(0, 512)),
        ([LAST], True, CacheUse(0, 512)),  # what an idle slot keeps is free for the next request
        ([BUSY], True, CacheUse(464, 512)),
        ([BUSY, IDLE], True, CacheUse(464, 1024)),
        ([BUSY, BUSY], True, CacheUse(928, 1024)),
        ([BUSY, IDLE], False, CacheUse(464, 512)),
        ([BUSY, BUSY], False, CacheUse(512, 512)),  # one for both: full, not more than full
        ([BUSY], None, CacheUse(464, 512)),
        ([BUSY, IDLE], None, None),  # of one cache or of two: not known
        ([BUSY | {"next_token": {"n_decoded": 11}}], True, CacheUse(464, 512)),  # other builds
        ([BUSY | {"next_token": [{"n_decoded": 9999}]}], True, CacheUse(512, 512)),  # the context has been shifted
        ([{"is_processing": True, "runner_cpu_seconds": 3.5}], True, None),  # Ollama
        ([{"is_processing": False, "n_ctx": 0}], True, None),
        ([BUSY | {"n_prompt_tokens_cache": None}], True, None),
        ([BUSY | {"n_prompt_tokens_processed": True}], True, None),
        ([BUSY | {"n_ctx": -4}], True, None),
        ([BUSY | {"next_token": []}], True, None),
        ([IDLE | {"is_processing": "no"}], True, None),
        ([], True, None),
        ([7], True, None),
        ({"error": {"message": "this server does not support slots endpoint"}}, True, None),
    ],
)
def test_what_slots_say(slots, splits, use):
    """Nothing where a part of it is missing: half a figure is none."""
    assert cache_use(json.dumps(slots).encode(), splits) == use


def test_what_is_no_json_says_nothing():
    """Nor does an answer that was cut."""
    assert cache_use(json.dumps([BUSY]).encode()[:-1], True) is None


def test_a_share_is_of_one():
    """As the endpoint picker reads it."""
    assert CacheUse(464, 512).share == 0.90625

"""LoRA adapters through a real `llmkube up`: each request gets those that it names, and never another's cache."""

import itertools
import json
import random

import pytest

from e2e.one_machine import eventually, open_up_with, served
from e2e.test_presets import post
from e2e.up_process import run_program
from llmkube.base.http.client import open_http_client
from tiny_models import write_adapter, write_full_attention

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

ADAPTERS = """
  adapters:
  - modelRef: first
    name: poet
  - modelRef: second
    name: clerk
    scale: "0.5"
  presets:
  - name: both
    adapters: [{name: poet}, {name: clerk, scale: "1"}]
  - name: plain
    temperature: "0"
"""
NAMES = ("tiny", "poet", "clerk", "both", "plain")
PROMPTS = [" ".join(f"{word} {number}" for number in range(40)) for word in ("one", "two", "three")]


async def test_each_request_gets_the_adapters_that_it_names(tmp_path):
    """Five names of one engine give four answers; in any order, each is the one that is computed without a cache."""
    base, first, second = (tmp_path / f"{name}.gguf" for name in ("tiny", "first", "second"))
    write_full_attention(base)
    write_adapter(first)
    write_adapter(second, seed=2, rank=8, names=("attn_k", "attn_v"))
    models = [served(path.stem, str(path)).partition("---")[0] for path in (first, second)]
    documents = [
        *models,
        served("tiny", str(base))
        .replace("contextSize: 512", "contextSize: 2048")
        .replace("Slots: 1", "Slots: 2")
        .rstrip()
        + ADAPTERS,
    ]
    async with open_up_with(tmp_path, documents=documents) as up:

        async def ask(model, prompt, **fields):
            body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
            return await post(f"{up.gateway}/v1/completions", body)

        await eventually(lambda: ask("poet", "hi"), lambda found: found[0] == 200)
        alone = {}
        for name, prompt in itertools.product(NAMES, PROMPTS):
            alone[name, prompt] = (await ask(name, prompt, cache_prompt=False))[1]["choices"][0]["text"]
        assert len({alone[name, PROMPTS[0]] for name in NAMES}) == len(NAMES) - 1
        rng, cached = random.Random(1), 0
        for _ in range(60):
            name, prompt = rng.choice(NAMES), rng.choice(PROMPTS)
            _, found = await ask(name, prompt)
            assert found["choices"][0]["text"] == alone[name, prompt], (name, prompt)
            cached += found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert cached > 5
        status, error = await ask("tiny", "hi", lora=[{"id": 0, "scale": 1}])
        assert (status, "selects adapters by number" in error["error"]["message"]) == (400, True)
        chats = {}
        for name in NAMES:
            body = {"model": name, "messages": [{"role": "user", "content": PROMPTS[0]}], "stream": False}
            _, told = await post(f"{up.gateway}/api/chat", body | {"options": {"temperature": 0, "num_predict": 8}})
            chats[name] = told["message"]["content"]
        assert len(set(chats.values())) == len(NAMES) - 1
        async with open_http_client() as http:
            listed = json.loads((await http.request("GET", f"{up.gateway}/v1/models")).body)["data"]
        assert {each["id"] for each in listed if each.get("parent") == "tiny"} == set(NAMES) - {"tiny"}
        home = tmp_path / "home"
        home.mkdir()
        code, out, err = await run_program(home, "status", "tiny", kubeconfig=up.state / "kubeconfig")
        assert code == 0, out + err
        assert "  adapters     poet (first, scale 1)\n               clerk (second, scale 0.5)\n" in out
        assert "prompts are not saved: it has adapters" in out


async def test_a_file_that_does_not_fit_is_refused_before_the_start(tmp_path):
    """The condition names the field, the file's problem and what to use."""
    base, other, model = (tmp_path / f"{name}.gguf" for name in ("tiny", "other", "model"))
    write_full_attention(base)
    write_full_attention(model)
    write_adapter(other, matrices={"attn_q": (32, 64)}, names=("attn_q",))
    models = [served(path.stem, str(path)).partition("---")[0] for path in (other, model)]
    services = {
        "adapted": served("tiny", str(base)).rstrip() + "\n  adapters: [{modelRef: other}]\n",
        "wrong": served("tiny", str(base)).rpartition("---")[2].replace("name: tiny", "name: wrong").rstrip()
        + "\n  adapters: [{modelRef: model}]\n",
        "alone": served("tiny", str(base))
        .rpartition("---")[2]
        .replace("name: tiny", "name: alone")
        .replace("modelRef: tiny", "modelRef: other"),
    }
    expected = {
        "tiny": "spec.adapters[0].modelRef: Model other: it does not fit blk.0.attn_q.weight, which is 64 x 64",
        "wrong": "spec.adapters[0].modelRef: Model model: it is a model, not a LoRA adapter",
        "alone": "is a LoRA adapter for llama, not a model; add it to the adapters of a service",
    }
    async with open_up_with(tmp_path, documents=[*models, *services.values()]) as up:
        for name, words in expected.items():
            await up.wait_service(name, "Loaded", lambda found, words=words: words in found.message)

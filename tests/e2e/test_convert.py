"""Models of llama-swap, Ollama and KubeAI, converted and served by a real `llmkube up`."""

import json
import shutil

import pytest
import yaml

from cli.commands.tools.test_other_programs import write_store
from e2e.test_presets import post
from e2e.up_process import open_machine
from e2e.web import open_web
from gguf_corpus import DEMO

pytestmark = [pytest.mark.e2e, pytest.mark.ci]


async def test_converted_models_answer_under_their_old_names(tmp_path):
    """The same file, named by a command of llama-swap and by a manifest of Ollama, answers under both names."""
    models, config = tmp_path / "gguf", tmp_path / "config.yaml"
    models.mkdir()
    shutil.copy(DEMO, models / "demo.gguf")
    command = f"llama-server --port ${{PORT}} -m {models}/demo.gguf -c 512 --threads 1"
    config.write_text(f'models:\n  "Demo:Q8":\n    cmd: {command}\n    ttl: 600\n    aliases: [gpt-4o-mini]\n')
    write_store(tmp_path / "store", DEMO.read_bytes(), params=b'{"num_ctx": 256, "num_thread": 1}')
    allowed = ("--allow-local-sources", str(models), "--allow-local-sources", str(tmp_path / "store" / "blobs"))
    async with open_machine(tmp_path, *allowed) as (up, run):
        _, gateway, _ = await up.urls()
        for program, source in (("llama-swap", config), ("ollama", tmp_path / "store")):
            code, text, err = await run("convert", "--from", program, "-f", str(source), "--accelerator", "cpu")
            assert code == 0, err
            (tmp_path / program).write_text(text)
            code, _, err = await run("apply", "-f", str(tmp_path / program))
            assert code == 0, err
        for name in ("Demo:Q8", "gpt-4o-mini", "tuned"):
            body = {"model": name, "messages": [{"role": "user", "content": "What is LLMKube?"}], "max_tokens": 4}
            status, answer = await post(f"{gateway}/v1/chat/completions", body)
            assert (status, answer.get("usage", {}).get("completion_tokens")) == (200, 4), answer
            assert answer["model"] == name


async def test_models_of_kubeai_answer_under_their_names(tmp_path):
    """A model of a repository is loaded by a request and answers; with `TextEmbedding` it returns vectors."""
    listing, commit = "api/models/org/small-GGUF/revision/main", "a" * 40
    asked = {"chat-cpu": ["TextGeneration"], "embed-cpu": ["TextEmbedding"]}
    models = [
        {
            "apiVersion": "kubeai.org/v1",
            "kind": "Model",
            "metadata": {"name": name},
            "spec": {"features": features, "owner": "org", "url": "hf://org/small-GGUF:Q8_0", "engine": "LlamaCpp"}
            | {"args": ["--ctx-size", "256"], "resourceProfile": "cpu:1", "minReplicas": 0},
        }
        for name, features in asked.items()
    ]
    file = tmp_path / "kubeai.yaml"
    file.write_text(yaml.safe_dump_all(models))
    async with open_web() as web:
        web.files[listing] = json.dumps({"sha": commit, "siblings": [{"rfilename": "small-Q8_0.gguf"}]}).encode()
        web.files[f"org/small-GGUF/resolve/{commit}/small-Q8_0.gguf"] = DEMO.read_bytes()
        async with open_machine(tmp_path, "--hub-endpoint", web.url) as (up, run):
            _, gateway, _ = await up.urls()
            code, text, err = await run("convert", "-f", str(file))
            assert code == 0, err
            file.write_text(text)
            code, _, err = await run("apply", "-f", str(file))
            assert code == 0, err
            body = {"model": "chat-cpu", "messages": [{"role": "user", "content": "What is LLMKube?"}], "max_tokens": 4}
            status, answer = await post(f"{gateway}/v1/chat/completions", body)
            assert (status, answer.get("usage", {}).get("completion_tokens")) == (200, 4), answer
            status, answer = await post(f"{gateway}/v1/embeddings", {"model": "embed-cpu", "input": "What is LLMKube?"})
            assert (status, len(answer["data"][0]["embedding"]) > 16) == (200, True), answer

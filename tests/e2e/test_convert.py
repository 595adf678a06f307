"""Models of llama-swap and Ollama, converted and served by a real `llmkube up`."""

import shutil

import pytest

from cli.commands.tools.test_other_programs import write_store
from e2e.test_presets import post
from e2e.up_process import open_machine
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

"""Names with settings through a real `llmkube up`: one engine, and a different prompt and answer for each name."""

import json

import pytest

from e2e.one_machine import eventually, open_up_with, served
from llmkube.base.http.client import open_http_client

pytestmark = [pytest.mark.e2e, pytest.mark.ci]

PRESETS = """
  presets:
  - name: brief
    maxTokens: 3
    temperature: "0"
    system: Be brief.
"""


async def post(url, body):
    async with open_http_client() as http:
        answer = await http.request("POST", url, body=json.dumps(body).encode())
    return answer.status, json.loads(answer.body)


async def test_a_name_has_settings_of_its_own_on_one_engine(tmp_path):
    """The template gets its system text, and the answer ends at its limit; the other name has neither."""
    documents = [served("named").rstrip() + PRESETS]
    async with open_up_with(tmp_path, documents=documents) as up:

        async def ask(model, path="/v1/chat/completions", **fields):
            body = {"model": model, "messages": [{"role": "user", "content": "What is LLMKube?"}], **fields}
            return await post(up.gateway + path, body)

        _, answer = await eventually(lambda: ask("brief"), lambda found: found[0] == 200)
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["model"] == "brief"
        _, other = await ask("named", temperature=0)
        assert other["usage"]["completion_tokens"] > 3
        _, longer = await ask("brief", max_tokens=5)
        assert longer["usage"]["completion_tokens"] == 5
        prompts = {name: (await ask(name, "/apply-template"))[1]["prompt"] for name in ("brief", "named")}
        assert "Be brief." in prompts["brief"]
        assert "Be brief." not in prompts["named"]
        _, told = await ask("brief", "/api/chat", stream=False)
        assert told["eval_count"] == 3

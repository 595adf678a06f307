"""Requests of OpenAI's client to a router, as its users write them; run with only the pinned packages on the path.

python -S router_clients.py ROUTER QUESTION: prints one JSON object, by request.
"""

import json
import sys

import openai
from client_questions import ASK, TOOL, failure
from client_questions import SERVER as ROUTER

HARD = {"X-LLMKube-Task-Complexity": "complex"}


def text_of(stream):
    return "".join(part.choices[0].delta.content or "" for part in stream)


def message(text):
    return [{"role": "user", "content": text}]


client = openai.OpenAI(base_url=f"{ROUTER}/v1", api_key="team-canary-0815", max_retries=0)
create = client.chat.completions.create
picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/a.png"}}]}]
results = {
    "plain": create(model="local-mac", messages=ASK, temperature=0).choices[0].message.content,
    "streaming": text_of(create(model="local-mac", messages=ASK, temperature=0, stream=True)),
    "cloud": create(model="any", messages=ASK, extra_headers=HARD).choices[0].message.content,
    "cloud streaming": text_of(create(model="any", messages=ASK, stream=True, extra_headers=HARD)),
    "models": [model.id for model in client.models.list().data],
    "broken": failure(lambda: text_of(create(model="any", messages=message("break"), stream=True, extra_headers=HARD))),
    "timeout": failure(client.with_options(timeout=0.5).chat.completions.create,
                       model="any", messages=message("slow"), extra_headers=HARD),
    "url": failure(create, model="any", messages=picture),
    "embeddings": failure(client.embeddings.create, model="local-mac", input="x"),
}  # fmt: skip
call = create(model="any", messages=ASK, tools=[TOOL], extra_headers=HARD).choices[0].message.tool_calls[0].function
results["tools"] = [call.name, json.loads(call.arguments)]
sys.stdout.write(json.dumps(results))

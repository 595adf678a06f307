"""Requests of OpenAI's client to a router's `/v1/responses`, as its users write them; with only the pinned packages.

python -S router_responses_clients.py ROUTER QUESTION: prints one JSON object, by request.
"""

import json
import sys

import openai
from client_questions import PARAMETERS, QUESTION, failure
from client_questions import SERVER as ROUTER

RESULT = "sunny in Rome"
COLD = {"temperature": 0}
SEARCH = {"type": "web_search"}
PATCH = {"type": "custom", "name": "apply_patch"}


def of_responses():
    client = openai.OpenAI(base_url=f"{ROUTER}/v1", api_key="none", max_retries=0)
    create = client.responses.create
    tool = {"type": "function", "name": "weather", "description": "Tell it", "parameters": PARAMETERS, "strict": False}
    plain = create(model="local-mac", input=QUESTION, **COLD)
    events = list(create(model="local-mac", input=QUESTION, stream=True, **COLD))
    with client.responses.stream(model="local-mac", input=QUESTION, **COLD) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    again = create(model="local-mac", input=QUESTION, previous_response_id=plain.id, max_output_tokens=4, **COLD)
    found = {
        "plain": plain.output_text,
        "streaming": "".join(each.delta for each in events if each.type == "response.output_text.delta"),
        "numbers": [each.sequence_number for each in events] == list(range(len(events))),
        "kinds": [kinds[0], kinds[1], kinds[-1]],
        "final": [final.output_text, final.status, final.usage.input_tokens > 0, final.usage.output_tokens > 0],
        "continued": [again.status, again.previous_response_id == plain.id,
                      again.usage.input_tokens > plain.usage.input_tokens],
        "cut": again.incomplete_details.reason if again.incomplete_details else None,
        "retrieved": client.responses.retrieve(plain.id).model_dump() == plain.model_dump(),
        "items": [item.role for item in client.responses.input_items.list(again.id, order="asc", limit=1)],
        "deleted": failure(lambda: (client.responses.delete(plain.id), client.responses.retrieve(plain.id))),
        "unknown": failure(create, model="local-mac", input="x", previous_response_id="resp_gone"),
        "unsupported": failure(create, model="local-mac", input="x", tools=[SEARCH], tool_choice=SEARCH),
        "together": create(model="gpt-5", input=QUESTION, tools=[SEARCH]).output_text,
        "too long": failure(create, model="local-mac", input="word " * 20_000),
        "broken": failure(lambda: list(create(model="gpt-5", input="break", stream=True))),
    }  # fmt: skip
    for model in ("gpt-5", "claude-opus"):
        first = create(model=model, input=QUESTION, tools=[tool])
        call = first.output[0]
        with client.responses.stream(model=model, input=QUESTION, tools=[tool]) as stream:
            streamed = stream.get_final_response().output[0]
        result = [{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}]
        found[f"{model} tools"] = [call.name, json.loads(call.arguments), streamed.name, json.loads(streamed.arguments)]
        found[f"{model} answers"] = create(model=model, input=result, previous_response_id=first.id).output_text
        alone = [{"role": "user", "content": QUESTION}, *(item.model_dump() for item in first.output), *result]
        found[f"{model} without state"] = create(model=model, input=alone, store=False).output_text
        tools = [{"type": "namespace", "name": "mcp", "description": "", "tools": [tool]}, SEARCH]
        with client.responses.stream(model=model, input=QUESTION, tools=tools) as stream:
            call = stream.get_final_response().output[0]
        history = [{"role": "user", "content": QUESTION}, {"type": "item_reference", "id": call.id}, *result]
        answer = create(model=model, input=history, tools=tools)
        found[f"{model} namespace"] = [call.name, call.namespace, answer.status]
    with client.responses.stream(model="gpt-5", input=QUESTION, tools=[PATCH]) as stream:
        texts = [event.delta for event in stream if event.type == "response.custom_tool_call_input.delta"]
        found["custom"] = [stream.get_final_response().output[0].input, "".join(texts)]
    found["reference"] = failure(create, model="gpt-5", input=[{"type": "item_reference", "id": "msg_gone"}])
    private = {"X-LLMKube-Classification": "pii"}
    secret = create(model="local-mac", input="a secret", max_output_tokens=4, extra_headers=private)
    raw = client.responses.with_raw_response.create
    outside = raw(model="gpt-5", input="and outside", previous_response_id=secret.id, max_output_tokens=4)
    found["pii"] = [outside.headers["x-llmkube-backend"], raw(model="gpt-5", input="x").headers["x-llmkube-backend"]]
    return found


sys.stdout.write(json.dumps(of_responses()))

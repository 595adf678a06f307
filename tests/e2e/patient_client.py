"""A request of OpenAI's client with its defaults; run with only the pinned packages on the path.

python -S patient_client.py GATEWAY QUESTION: prints one JSON object.
"""

import json
import sys

import openai
from client_questions import ASK, SERVER

client = openai.OpenAI(base_url=f"{SERVER}/v1", api_key="none")
answer = client.chat.completions.create(model="demo", messages=ASK, temperature=0)
sys.stdout.write(json.dumps({"plain": answer.choices[0].message.content}))

"""Translations between chat completions and what else clients and providers speak. Pure.

Policy, budgets and attempts know chat completions alone: a request is translated before it is decided on, its answer
after it was judged. What a backend cannot be asked in its own dialect is an error, never left out in silence.

dialect              what a translation is, and its errors
messages_backend     chat completions for a backend that speaks Anthropic's messages
messages_client      Anthropic's messages for a client, from chat completions
messages_answers     its answers and events
responses_client     OpenAI's responses for a client; responses_items, responses_answers: what it reads
ollama_client        Ollama's API for a client; ollama_models: what it reads
inbound              which path speaks which dialect
"""

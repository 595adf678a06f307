"""Translations between OpenAI's chat completions and the other APIs of clients and providers. Pure.

Policy, budgets and attempts handle chat completions only: a request is translated before the routing decision, its
answer after it was classified. A part that cannot be translated for a backend is dropped and named, or is an error.

dialect              base class of translators, helpers and errors
providers            what engines and providers take: a table, and chat completions in the form of one row
chat_form            one form for the chat completions of all backends; error_shapes: for their errors
engine_form          chat completions in the form for engines of ours
messages_backend     chat completions for backends with Anthropic's Messages API
messages_client      requests of clients of Anthropic's Messages API; messages_answers: their answers
responses_client     requests of clients of OpenAI's Responses API; responses_items, responses_answers: items, answers
responses_tools      their tools as functions; responses_api.toml: types of tools and items, unsupported fields
ollama_client        requests and answers of clients of Ollama's API; ollama_models: its lists of models
inbound              dialect of each path
"""

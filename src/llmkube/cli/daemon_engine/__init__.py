"""One model of an Ollama as an engine of ours: a process that the agent supervises like llama-server.

program                           python -m llmkube.cli.daemon_engine.program, and its parts in order
options, naming                   the command line; the model's name in requests, answers and Ollama's store
keeper, keeping                   looks, decides, acts; what to do next, from what was seen: pure
witness, runners                  one look; which processes hold weights: pure
daemon_api, daemon_process        Ollama's HTTP API; an `ollama serve` of our own, where none runs
weights                           brings a model into Ollama's store
front, counters                   what clients and the agent reach; what `/metrics` and `/slots` say

It borrows the server that answers at OLLAMA_HOST, and never ends that one.
"""

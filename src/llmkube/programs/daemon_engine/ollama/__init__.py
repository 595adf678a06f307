"""Ollama: a server that starts a process for each model, and names the model's file in its command line.

program, options                  python -m llmkube.programs.daemon_engine.ollama.program, and its command line
model                             the model, as the keeper handles it
witness, runners                  one look; which processes hold weights: pure
daemon_api, daemon_process        Ollama's HTTP API; an `ollama serve` of our own, where none runs
weights, store_names              brings a model into Ollama's store; what it is called there
pull_room                         ends a pull that would fill the disk
"""

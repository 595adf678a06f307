"""One model of an Ollama as an engine of ours: a process that the agent supervises like llama-server.

    runners        which processes of Ollama hold weights; pure
    keeping        what to do next, from what was seen; pure
    naming         the model's name in requests, answers and Ollama's store; pure
    options        the command line
    counters       what `/metrics` and `/slots` say
    daemon_api     Ollama's HTTP API
    daemon_process an `ollama serve` of our own, where none runs
    witness        one look: the server's word, and the kernel's
    keeper         looks, decides, acts
    front          what clients and the agent reach
    program        the program: python -m llmkube.cli.ollama_engine.program

It borrows the server that answers at OLLAMA_HOST, and never ends that one.
"""

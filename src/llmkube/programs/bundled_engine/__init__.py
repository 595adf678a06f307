"""`llmkube-llama-server`: llama.cpp from the xllamacpp package, with llama-server's flags.

    llama_params  the table of flags (flags.toml), and their conversion to the engine's parameters
    llama_server  the program
It is used if no llama-server is installed; the supervisor treats it like any other engine.
"""

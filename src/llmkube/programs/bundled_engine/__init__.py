"""`llmkube-llama-server`: llama.cpp as it comes with the xllamacpp package, under llama-server's own flags.

    llama_params  the table of flags (flags.toml), and what it sets
    llama_server  the program
Used where no llama-server is installed; the supervisor treats it like any other engine.
"""

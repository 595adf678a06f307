"""`llmkube verify`: what the project promises of a Mac or a GPU, tried on the owner's machine.

promises.toml  each promise, and what is done to check it
checks         the checks
command        the command and its report
"""

"""Settings of the agent in `llmkube agent` and `llmkube up`, made from their flags.

*_options       one part of the agent's settings each
engine_program  which llama-server runs
host_name       the host's name and address
"""

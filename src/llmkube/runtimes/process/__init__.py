"""Engines as processes of a host: a table with a row for each runtime.

host_runtimes   the table
host_runtime    what a row holds
llamacpp        llama-server's row, and its command line
mlx_lm          mlx_lm.server's
vllm_metal      vLLM's on a Mac
ollama, omlx    Ollama's and oMLX's, each behind a process of ours
daemon_front    what these two have in common
host_fields     which fields take effect on a host whatever the runtime
environment     the environment variables of engines
memory_demand   what llama-server's arguments mean for memory
buffers, exits  what logs say of memory, and why an engine ended
"""

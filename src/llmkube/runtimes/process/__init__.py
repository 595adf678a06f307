"""Engines as processes of a host: a table with a row for each runtime.

host_runtimes   the table
host_runtime    what a row holds
llamacpp        llama-server's row, its command line, what its log says of memory
mlx_lm          mlx_lm.server's
vllm_metal      vLLM's on a Mac
ollama, omlx    Ollama's and oMLX's, each behind a process of ours
plan_inputs     what a plan is made from; what is the same for every runtime, or for those of a shared daemon
environment     the environment variables of engines
memory_demand   what llama-server's arguments mean for memory
exits           why an engine ended, by its log
"""

"""Engines as processes on a host: a table with a row for each runtime.

host_runtimes   the table
host_runtime    the class of a row
llamacpp        llama-server: its row, its command line, memory figures from its log
mlx_lm          mlx_lm.server
vllm_metal      vLLM on a Mac
ollama, omlx    Ollama and oMLX, each behind a front process of ours
generic         an engine of the host's owner, from config.toml
plan_inputs     inputs of a plan; parts common to all runtimes, or to those on a shared daemon
environment     the environment variables of engines
memory_demand   the memory settings in llama-server's arguments
exits           the cause of an engine's exit, from its log
"""

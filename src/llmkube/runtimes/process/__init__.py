"""Engines as processes of a host: a table with a row for each runtime.

host_runtimes   the table
host_runtime    what a row holds
llamacpp        llama-server's row, and its command line
environment     the environment variables of engines
memory_demand   what llama-server's arguments mean for memory
buffers, exits  what logs say of memory, and why an engine ended
"""

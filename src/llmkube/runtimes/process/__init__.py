"""Engines as processes of a host; llama-server is the only one.

llamacpp        its command line
environment     its environment variables
memory_demand   what its arguments mean for memory
buffers, exits  what its log says of memory, and why it ended
"""

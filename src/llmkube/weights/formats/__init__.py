"""Read GGUF headers within bounds of time and memory, and refuse what llama.cpp refuses. Pure.

gguf                     the facts and the shape of a file
gguf_reader              fed piece by piece, so that it works on a download too
gguf_format              the constants of the format, and what is refused
ollama_show              the same facts from Ollama's description of a model
shape                    tensors and key values, for `estimate`
"""

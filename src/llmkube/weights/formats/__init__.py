"""What a GGUF header says, read within bounds of time and memory, and refused as llama.cpp refuses it. Pure.

gguf                     the facts and the shape of a file
gguf_reader              fed piece by piece, so that it works on a download too
gguf_format              the numbers of the format; what is refused
ollama_show              the same facts from what an Ollama says of a model
shape                    tensors and key values, for `estimate`
"""

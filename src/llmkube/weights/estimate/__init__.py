"""Estimate the memory of an engine from a header and the engine's arguments. Pure.

sizing                              the sum: weights, caches, compute buffer
demand                              the input, and the estimate by component
layers, tensor_placement            the sizes of caches, the placement of weights
compute_buffer                      llama.cpp's graph (graph_builder, attention), run
                                    through ggml's allocator (graph_allocator)
mlx                                 folders of safetensors
"""

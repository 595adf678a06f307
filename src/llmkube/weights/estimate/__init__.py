"""How much memory an engine will need, from a header and its arguments. Pure.

sizing                              the sum: weights, caches, compute buffer
demand                              what is asked, and the estimate by component
layers, tensor_placement            what is where
compute_buffer                      llama.cpp's graph (graph_builder, attention), played
                                    through ggml's allocator (graph_allocator)
mlx                                 folders of safetensors
"""

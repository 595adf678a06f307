"""Random workloads of more models than memory, played under a virtual clock.

workloads      the generator: models, calls, and memory that other programs take; committed before any policy
"""

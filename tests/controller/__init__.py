"""A package with a file of its own: without one, `benchmarks/controller.py` would be found in its place."""

"""A package with a file of its own: without one, `benchmarks/pressure.py` would be found in its place."""

"""A package with a file of its own: without one, `benchmarks/router.py` would be found in its place."""

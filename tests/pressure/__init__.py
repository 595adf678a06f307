"""A package with an `__init__.py`: without one, `benchmarks/pressure.py` would be imported in its place."""

"""Router tests. The package needs this file: without it, `import router` would find `benchmarks/router.py`."""

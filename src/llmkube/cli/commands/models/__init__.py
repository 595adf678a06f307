"""Commands about model files: what a file says (inspect), whether it fits (fit), what is on disk (cache)."""

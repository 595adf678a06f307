"""bundled_engine."""

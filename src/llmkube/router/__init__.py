"""The OpenAI-compatible front door: picks a backend, streams its bytes, decides nothing about lifecycles."""

"""Plumbing that knows nothing about language models or Kubernetes."""

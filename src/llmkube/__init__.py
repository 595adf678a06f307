"""LLMKube serves language models on Macs and clusters through Kubernetes objects."""

__version__ = "0.1.0"

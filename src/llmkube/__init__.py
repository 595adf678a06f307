"""LLMKube serves language models on Macs and clusters through Kubernetes objects."""

import sys

# httpx's own command line brings rich, pygments and click: a tenth of the time of `llmkube list`. With None here httpx
# takes it for not installed, which is one of its two ordinary states.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

__version__ = "0.1.0"

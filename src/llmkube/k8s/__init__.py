"""Talk to any Kubernetes API server, on Trio over httpx; this package decides nothing."""

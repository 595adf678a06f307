"""The embedded Kubernetes API server that llmkube up runs on one machine."""

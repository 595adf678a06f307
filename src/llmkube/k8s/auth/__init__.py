"""Who we are and where the server is: kubeconfig or service account in, an authenticated transport out."""

from llmkube.k8s.auth.config import ClusterConfig, ConfigError
from llmkube.k8s.auth.load import load_config
from llmkube.k8s.auth.transport import AuthTransport

__all__ = ["AuthTransport", "ClusterConfig", "ConfigError", "load_config"]

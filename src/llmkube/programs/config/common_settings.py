"""Settings that several programs have."""

from typing import Any

from llmkube.base.settings import LOG_LEVELS, setting
from llmkube.weights.download.hugging_face import ENDPOINT

NAMESPACE = setting(None, help="Only serve this namespace; without it, all of them.")
KUBECONFIG = setting(None, help="Path of the kubeconfig.")
CONTEXT = setting(None, help="Context of the kubeconfig.")
MODEL_STORE = setting(None, help="Folder for model files; without it, `store` in the state directory.")
HF_TOKEN_FILE = setting(
    None, help="File with a Hugging Face token, for every Model that names no Secret; read anew for each download."
)
HUB_ENDPOINT = setting(ENDPOINT, help="Address of Hugging Face, or of a mirror of it.")
LEASE_NAMESPACE = setting("llmkube-system", help="Namespace of the hosts' Leases.")


def port_setting(default: int, what: str) -> Any:
    """Return the setting of a port on 127.0.0.1."""
    return setting(default, help=f"Port of {what} on 127.0.0.1; 0 takes a free one.", minimum=0, maximum=65535)


def log_level_setting(default: str) -> Any:
    """Return the setting of a program's log level."""
    return setting(default, help="The least important log line to write.", choices=LOG_LEVELS)

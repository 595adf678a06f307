"""Find the cluster that the user means, in the order that kubectl uses."""

import os
from collections.abc import Mapping
from pathlib import Path

from llmkube.k8s.auth.config import ClusterConfig, ConfigError
from llmkube.k8s.auth.kubeconfig import read_kubeconfig, read_service_account

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def load_config(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """Return the configuration of the cluster that is meant.

    Args:
        kubeconfig: A file that must exist; None looks at `KUBECONFIG` (a list of files, merged as kubectl does),
            `~/.kube/config`, and then at the service account of the pod that we run in.
        context: A context of the kubeconfig; None means its current one.
        environ: The environment.
        service_account: Where a pod finds its token.

    Raises:
        ConfigError: There is no configuration, or it cannot be used; the message names the file and the entry.
    """
    home = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    if kubeconfig is not None:
        return read_kubeconfig(str(kubeconfig), context)
    if environ.get("KUBECONFIG"):
        return read_kubeconfig(environ["KUBECONFIG"], context)
    if home.is_file():
        return read_kubeconfig(str(home), context)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return read_service_account(service_account, environ)
    raise ConfigError(f"no cluster: no --kubeconfig, KUBECONFIG is not set, {home} does not exist, and this is no pod")

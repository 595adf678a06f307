"""The programs of the node and their configuration: flags, files, certificates, in the order of need."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import yaml

from envtest.certs import Authority, ServiceAccountSigner
from envtest.plane import ADMINS, ISSUER, credentials_of, write_kubeconfig, write_private
from envtest.programs import Program
from node.build import program_dirs
from node.wiring import ADDRESS, NODE, PODS, STATE

SERVER = f"https://{ADDRESS}:6443"
SERVICES = "10.96.0.0/16"
DNS = "10.96.0.10"
SANDBOX = "localhost/pause:test"
USERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "admin": ("admin", ADMINS),
    "kubelet": (f"system:node:{NODE}", ("system:nodes",)),
    "controller-manager": ("system:kube-controller-manager", ()),
    "scheduler": ("system:kube-scheduler", ()),
    "proxy": ("system:kube-proxy", ()),
}
"""Kubeconfigs: the user of each, and its groups."""


def write_files(authority: Authority, signer: ServiceAccountSigner) -> None:
    """Write keys, kubeconfigs and configurations into the state folder."""
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
    serving = authority.server("kube-apiserver", (ADDRESS, "10.96.0.1", "127.0.0.1", *names))
    to_kubelet = authority.client("kube-apiserver", ADMINS)
    for name, content in {
        "ca.crt": authority.certificate,
        "apiserver.crt": serving.certificate,
        "apiserver.key": serving.key,
        "apiserver-kubelet.crt": to_kubelet.certificate,
        "apiserver-kubelet.key": to_kubelet.key,
        "accounts.pub": signer.public_pem,
        "accounts.key": signer.private_pem,
        "resolv.conf": f"nameserver {DNS}\n".encode(),
        "kubelet.yaml": _kubelet_configuration(),
        "proxy.yaml": _proxy_configuration(),
        "containerd.toml": _containerd_configuration(),
        "Corefile": _COREFILE.encode(),
        "audit.yaml": _yaml(_AUDIT_POLICY),
    }.items():
        write_private(STATE / name, content)
    (STATE / "cni").mkdir()
    (STATE / "cni" / "10-bridge.conflist").write_text(json.dumps(_POD_NETWORK))
    for name, (user, groups) in USERS.items():
        credentials = credentials_of(authority.client(user, groups))
        write_kubeconfig(STATE / f"{name}.kubeconfig", SERVER, authority.certificate, credentials)


def program(name: str, *flags: str) -> Program:
    """Return a program of the node; it logs to `logs/NAME.log`."""
    return Program(name, (name, *flags), STATE / "logs" / f"{name}.log")


def path() -> str:
    """Return PATH inside the node."""
    return ":".join((*map(str, program_dirs()), os.environ["PATH"]))


def etcd() -> Program:
    return program("etcd", f"--data-dir={STATE / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn")


def api_server() -> Program:
    return program(
        "kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        f"--bind-address={ADDRESS}",
        f"--advertise-address={ADDRESS}",
        f"--service-cluster-ip-range={SERVICES}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--client-ca-file={STATE / 'ca.crt'}",
        f"--tls-cert-file={STATE / 'apiserver.crt'}",
        f"--tls-private-key-file={STATE / 'apiserver.key'}",
        f"--kubelet-client-certificate={STATE / 'apiserver-kubelet.crt'}",
        f"--kubelet-client-key={STATE / 'apiserver-kubelet.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={STATE / 'accounts.pub'}",
        f"--service-account-signing-key-file={STATE / 'accounts.key'}",
        f"--audit-policy-file={STATE / 'audit.yaml'}",
        f"--audit-log-path={STATE / 'logs' / 'audit.jsonl'}",
        "--profiling=false",
    )


def controller_manager() -> Program:
    return program(
        "kube-controller-manager",
        f"--kubeconfig={STATE / 'controller-manager.kubeconfig'}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={STATE / 'accounts.key'}",
        f"--root-ca-file={STATE / 'ca.crt'}",
        "--leader-elect=false",
        # a test of minutes waits for what a cluster does within minutes
        "--horizontal-pod-autoscaler-sync-period=2s",
        "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
        "--horizontal-pod-autoscaler-downscale-stabilization=5s",
    )


def scheduler() -> Program:
    return program("kube-scheduler", f"--kubeconfig={STATE / 'scheduler.kubeconfig'}", "--leader-elect=false")


def containerd() -> Program:
    return program("containerd", "--config", str(STATE / "containerd.toml"))


def kubelet() -> Program:
    files = (f"--config={STATE / 'kubelet.yaml'}", f"--kubeconfig={STATE / 'kubelet.kubeconfig'}")
    return program("kubelet", *files, f"--node-ip={ADDRESS}", f"--hostname-override={NODE}")


def proxy() -> Program:
    return program("kube-proxy", f"--config={STATE / 'proxy.yaml'}", f"--hostname-override={NODE}")


def coredns() -> Program:
    return program("coredns", "-conf", str(STATE / "Corefile"))


_POD_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipMasq": True,
            "ipMasqBackend": "nftables",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }
    ],
}

_COREFILE = f"""cluster.local:53 {{
    bind {ADDRESS}
    errors
    kubernetes cluster.local {{
        kubeconfig {STATE / "admin.kubeconfig"}
    }}
}}
"""


def _containerd_configuration() -> bytes:
    plugins = program_dirs()[1]
    return f"""version = 3
root = "{STATE / "containerd"}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{SANDBOX}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # a machine may withhold CAP_SYS_RESOURCE: then no score can be lowered
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "{STATE / "cni"}"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
""".encode()


def _kubelet_configuration() -> bytes:
    return _yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "protectKernelDefaults": True,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(STATE / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(STATE / "resolv.conf"),
            "volumePluginDir": "/run/volumeplugins",
            # a test of minutes sees several restarts of what crashes
            "crashLoopBackOff": {"maxContainerRestartPeriod": "3s"},
            # the machine's disk is not the node's: its fill level is none of the tests' business
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        }
    )


def _proxy_configuration() -> bytes:
    return _yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "oomScoreAdj": 0,
            "clientConnection": {"kubeconfig": str(STATE / "proxy.kubeconfig")},
            "clusterCIDR": PODS,
            "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts:llmkube-system"]}, {"level": "None"}],
}
"""Requests of our own programs to the API server, one line each: `logs/audit.jsonl`."""

NAME_SERVICE = Template(Path(__file__).with_name("name_service.yaml").read_text(encoding="utf-8")).substitute(
    DNS=DNS, ADDRESS=ADDRESS
)
"""Additions to Kubernetes' own objects: the name service, and volumes that bind at the first pod."""


def _yaml(document: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(document)).encode()

"""A real control plane for one test or one session: etcd, kube-apiserver and, if wanted, kube-controller-manager.

Nothing of it is simulated but the machines: there is no kubelet and no scheduler, so Pods stay Pending. RBAC is on,
every certificate is signed by a CA of its own, everything listens on 127.0.0.1 and keeps its files in one folder.
"""

import base64
import datetime
import json
import os
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx  # noqa: ASYNC127 (the project's settled choice)
import trio

from envtest.certs import Authority, Pair, ServiceAccountSigner
from envtest.programs import Program, ProgramError
from free_ports import free_port

ISSUER = "https://kubernetes.default.svc.cluster.local"
CONTROLLERS = (
    "deployment-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "serviceaccount-controller",
)
ADMINS = ("system:masters",)
START_SECONDS = 120.0
"""A cold start takes 3 to 10 s; a machine that is busy with a build may need much longer."""

STOP_SECONDS = 30.0
STEP_SECONDS = 5.0
POLL_SECONDS = 0.05


@attrs.define(eq=False)
class ControlPlane:
    """A running control plane.

    Attributes:
        kubeconfig: Credentials of a cluster administrator (group `system:masters`).
        server: The API server's URL.
        work_dir: Where everything lies; `<program>.log` is what each program said.
        authority: Signs client certificates of further users; the API server trusts it.
        signer: Signs tokens of ServiceAccounts.
        etcd: The database's process.
        api_server: The API server's process; stop it, kill it and start it at will.
        controller_manager: The controllers' process, or None.
    """

    kubeconfig: Path
    server: str
    work_dir: Path
    authority: Authority
    signer: ServiceAccountSigner
    etcd: Program
    api_server: Program
    controller_manager: Program | None
    _admin: ssl.SSLContext

    @property
    def programs(self) -> tuple[Program, ...]:
        """The running programs, in the order of need."""
        return tuple(each for each in (self.etcd, self.api_server, self.controller_manager) if each is not None)

    @property
    def resident_bytes(self) -> Mapping[str, int]:
        """Resident memory of each program."""
        return {each.name: each.resident_bytes for each in self.programs}

    async def start_api_server(self) -> None:
        """Start the API server again after a stop or a kill, on the same port; returns when it is ready."""
        await self.api_server.start()
        await self.wait_ready()

    async def wait_ready(self) -> None:
        """Return when `/readyz` says ok and the `default` namespace exists (it is made shortly after)."""
        await _wait_ok(self.api_server, f"{self.server}/readyz", self._admin)
        await _wait_ok(self.api_server, f"{self.server}/api/v1/namespaces/default", self._admin)

    def write_kubeconfig(self, path: Path, *, user: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a fresh client certificate of a user, and return its path."""
        credentials = credentials_of(self.authority.client(user, groups))
        return write_kubeconfig(path, self.server, self.authority.certificate, credentials)

    def write_token_kubeconfig(self, path: Path, token: str) -> Path:
        """Write a kubeconfig with a bearer token, and return its path."""
        return write_kubeconfig(path, self.server, self.authority.certificate, {"token": token})


@asynccontextmanager
async def open_control_plane(
    assets: Path,
    work_dir: Path,
    *,
    controllers: bool = False,
    api_server_flags: Sequence[str] = (),
) -> AsyncGenerator[ControlPlane, None]:
    """Run a control plane; on entry it is ready, on exit all programs are stopped, in at most half a minute.

    Args:
        assets: The folder that holds the programs.
        work_dir: A private folder for data, keys and logs; it is made if need be, and left for a look at the logs.
        controllers: Whether kube-controller-manager runs as well (`CONTROLLERS`).
        api_server_flags: Further flags of kube-apiserver, for example `--watch-cache=false`.

    Raises:
        ProgramError: A program did not start, or exited by itself before the end.
    """
    work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    etcd_port, api_port = free_port(), free_port()
    plane = _prepare(_Layout(assets, work_dir, etcd_port, api_port), now, controllers, api_server_flags)
    try:
        await plane.etcd.start()
        await _wait_ok(plane.etcd, f"http://127.0.0.1:{etcd_port}/health", None)
        await plane.start_api_server()
        if plane.controller_manager is not None:
            await plane.controller_manager.start()
            await _wait_ok(plane.controller_manager, _default_account(plane.server), plane._admin)
        yield plane
        for program in plane.programs:
            program.check()
    finally:
        # the reverse order of need: the API server takes its leases out of etcd on the way out
        with trio.CancelScope(deadline=trio.current_time() + STOP_SECONDS, shield=True):
            for program in reversed(plane.programs):
                await program.stop()


@attrs.frozen
class _Layout:
    """Where the programs are, where they keep their files, and which ports they bind."""

    assets: Path
    work_dir: Path
    etcd_port: int
    api_port: int

    @property
    def etcd_url(self) -> str:
        return f"http://127.0.0.1:{self.etcd_port}"

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    def program(self, name: str, *flags: str) -> Program:
        return Program(name, (str(self.assets / name), *flags), self.work_dir / f"{name}.log")


def _prepare(at: _Layout, now: datetime.datetime, controllers: bool, api_server_flags: Sequence[str]) -> ControlPlane:
    authority, signer = Authority("llmkube-envtest", now), ServiceAccountSigner(ISSUER)
    serving = authority.server("kube-apiserver", ("127.0.0.1", "10.0.0.1", "localhost", "kubernetes.default.svc"))
    for name, content in {
        "ca.crt": authority.certificate,
        "apiserver.crt": serving.certificate,
        "apiserver.key": serving.key,
        "service-account.pub": signer.public_pem,
        "service-account.key": signer.private_pem,
    }.items():
        write_private(at.work_dir / name, content)
    plane = ControlPlane(
        kubeconfig=at.work_dir / "kubeconfig",
        server=at.server,
        work_dir=at.work_dir,
        authority=authority,
        signer=signer,
        etcd=_etcd(at),
        api_server=_api_server(at, api_server_flags),
        controller_manager=_controller_manager(at) if controllers else None,
        admin=_client_context(authority, authority.client("llmkube-test-wait", ADMINS), at.work_dir),
    )
    plane.write_kubeconfig(plane.kubeconfig, user="llmkube-test-admin", groups=ADMINS)
    plane.write_kubeconfig(at.work_dir / "controller-manager.kubeconfig", user="system:kube-controller-manager")
    return plane


# -- command lines ----------------------------------------------------------------------------------------------------


def _etcd(at: _Layout) -> Program:
    return at.program(
        "etcd",
        f"--data-dir={at.work_dir / 'etcd'}",
        f"--listen-client-urls={at.etcd_url}",
        f"--advertise-client-urls={at.etcd_url}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--unsafe-no-fsync",  # the data need not outlive the machine
        "--log-level=warn",
    )


def _api_server(at: _Layout, more: Sequence[str]) -> Program:
    return at.program(
        "kube-apiserver",
        f"--etcd-servers={at.etcd_url}",
        "--bind-address=127.0.0.1",
        f"--secure-port={at.api_port}",
        # the `kubernetes` Service would want an address that is not loopback, and nothing here uses it
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",  # as installers set it: what a pod may have is a matter of admission
        f"--client-ca-file={at.work_dir / 'ca.crt'}",
        f"--tls-cert-file={at.work_dir / 'apiserver.crt'}",
        f"--tls-private-key-file={at.work_dir / 'apiserver.key'}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={at.work_dir / 'service-account.pub'}",
        f"--service-account-signing-key-file={at.work_dir / 'service-account.key'}",
        "--profiling=false",
        *more,
    )


def _controller_manager(at: _Layout) -> Program:
    return at.program(
        "kube-controller-manager",
        f"--kubeconfig={at.work_dir / 'controller-manager.kubeconfig'}",
        f"--controllers={','.join(CONTROLLERS)}",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={at.work_dir / 'service-account.key'}",
        f"--root-ca-file={at.work_dir / 'ca.crt'}",
        "--leader-elect=false",
        "--secure-port=0",  # it serves metrics and health only; that it works is seen by what it does
    )


# -- waiting and files ------------------------------------------------------------------------------------------------


async def _wait_ok(program: Program, url: str, context: ssl.SSLContext | None) -> None:
    """Return when a GET answers 200; ProgramError when the program exits, or `START_SECONDS` have passed."""
    answer = "no answer"
    with trio.move_on_after(START_SECONDS):
        async with httpx.AsyncClient(verify=context or False, trust_env=False, timeout=STEP_SECONDS) as http:
            while True:
                program.check()
                try:
                    response = await http.get(url)
                except httpx.TransportError as error:  # not listening yet
                    answer = str(error) or type(error).__name__
                else:
                    if response.status_code == httpx.codes.OK:
                        return
                    answer = f"{response.status_code}: {response.text}"
                await trio.sleep(POLL_SECONDS)
    raise program.error(f"is not ready after {START_SECONDS:g} s: {url} says {answer}")


def _default_account(server: str) -> str:
    """Return the URL of the object that kube-controller-manager creates first: its controllers then run."""
    return f"{server}/api/v1/namespaces/default/serviceaccounts/default"


def _client_context(authority: Authority, pair: Pair, work_dir: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    path = work_dir / "admin.pem"  # OpenSSL reads certificates from files only
    write_private(path, pair.certificate + pair.key)
    context.load_cert_chain(path)
    return context


def credentials_of(pair: Pair) -> Mapping[str, str]:
    """Return what a kubeconfig says of a user with a client certificate."""
    return {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}


def write_kubeconfig(path: Path, server: str, ca: bytes, credentials: Mapping[str, str]) -> Path:
    """Write a kubeconfig of one cluster and one user, and return its path."""
    named = {"cluster": {"server": server, "certificate-authority-data": _base64(ca)}}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "envtest", **named}],
        "users": [{"name": "envtest", "user": dict(credentials)}],
        "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": "envtest"}}],
        "current-context": "envtest",
    }
    write_private(path, json.dumps(document, indent=1).encode())  # JSON is YAML
    return path


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone reads."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


__all__ = ["ControlPlane", "ProgramError", "credentials_of", "open_control_plane", "write_kubeconfig", "write_private"]

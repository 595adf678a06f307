"""Settings of one host's agent; the name of every number has its unit."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs

from llmkube.base.http.egress import DIRECTLY, Egress
from llmkube.k8s.crd.pairing import MLX_RUNTIME
from llmkube.k8s.crd.placement import ALWAYS
from llmkube.k8s.label_selectors import Selector
from llmkube.runtimes.allowances import NO_ALLOWANCES, Allowances
from llmkube.runtimes.devices import Device, with_own_memory
from llmkube.supervisor.memory.policy import Policy, Rules
from llmkube.supervisor.values.liveness import Limits
from llmkube.weights.address_policy import Network
from llmkube.weights.download.hugging_face import ENDPOINT
from llmkube.weights.ollama_model import AllowedModels

END_SLACK_SECONDS = 5.0
"""Time after the grace period within which an engine is certainly gone."""


SAVE_SECONDS = 10.0
"""Time limit for saving the prompts of an engine before it stops."""

METAL_GRACE_SECONDS = 30.0
"""Grace period of an engine on Metal: the kernel may keep memory that the GPU wired for a killed process (oMLX issue
2184). A process that exited by itself took 4 s to release 373 GiB."""


EVERYWHERE = ("0.0.0.0/0", "::/0")


@attrs.frozen
class AgentSettings:
    """Complete settings of one host's agent, with all defaults resolved.

    Attributes:
        host_name: Name under which this host claims, publishes and reports; a DNS label.
        state_dir: Private folder (0700) for logs and working directories.
        store_dir: Folder of model files.
        private_sources: Networks that are not public and that the source of a Model may nevertheless lead to.
        local_sources: Folders of this host in which the source of a Model may name files.
        local_sources_file: File with more such folders, which commands of the host's owner record.
        ollama_sources: Models of this host's Ollama that the source of a Model may name.
        s3_env_auth: Whether Models without a Secret fetch objects with the AWS keys in the agent's environment.
        hub_token_file: File with the token for Models from the hub without a Secret; read for each use.
        hub_endpoint: URL of Hugging Face, or of a mirror of it.
        allowances: Flags and variables that are forbidden by default, and that services of this host may use.
        llama_server: Path of the llama-server program.
        programs: Paths of the programs of other runtimes, by runtime; others are found by name.
        fronts: Commands of the programs that run for each service of a shared daemon, by runtime.
        wrappers: Files that a program with its own Python runs before its arguments, by runtime.
        variables: Environment of all engines of this host, such as the location of their owner's oMLX.
        mlx_runtime: Default runtime for `format: mlx`.
        advertise_address: Address in EndpointSlices, or None to publish no Service and no slice (one machine, reached
            through the local gateway).
        bind_address: Address that engines listen on; never a wildcard.
        engine_proxy: Command of the proxy in front of a published engine; the path of its settings is its argument.
        door: Command of the door of this host, with such an argument.
        allow_from: Networks (CIDR) whose requests to published engines need no key.
        insecure_lan: Whether published engines require no key at all.
        api_server: URL of the API server if the advertised address is the source address of the route to it, which may
            change with the network; "" if `advertise_address` is fixed.
        host_ip: Advertised address that the operator chose; the agent then only checks that the host has it.
        namespace: The namespace to serve, or None for all.
        selector: Label selector of the services to serve; an empty one selects all.
        accelerators: Values of `spec.hardware.accelerator` that this host serves.
        endpoints_api: `endpointslices`, or `endpoints` for scripts that read the deprecated classic object.
        lease_namespace: Namespace of the host's Lease.
        token_file: Token of the host's own account, which the agent renews; None for other credentials.
        grace_seconds: Grace between TERM and KILL.
        metal_grace_seconds: The same for an engine on Metal, unless memory is critically short.
        drain_seconds: Time limit for requests in flight before an engine gets TERM.
        offline_seconds: Time that a starting agent waits for the API server before it starts engines from the journal.
        withdraw_seconds: Time limit for "not ready" to reach the API server before an engine is stopped anyway.
        load_stall_seconds: Time without progress after which a load has stalled; a load itself has no time limit.
        hang_seconds: Time without activity after which an engine with pending requests is replaced.
        retry_cap_seconds: Longest delay before a failed fetch is retried.
        reassert_seconds: Interval at which published objects are compared and applied again if another client changed
            them.
        lease_renew_seconds: Interval at which the host's Lease is renewed; it expires after four intervals.
        log_cap_bytes: Size beyond which an engine's log file is rotated.
        metal: Whether engines of this host compute on Metal by default.
        keep_awake: Whether this Mac is kept awake while an engine runs, not only while one works.
        activation: Activation mode of services that set none.
        prompt_cache_bytes: Total size of the saved prompts of engines that have stopped; 0 saves none.
        memory_fraction: Share of the host's memory that models may use; None for the default for its size.
        memory_guesses: Whether a model may start if its memory need is not known.
        memory_policy: Thresholds for admission, eviction and return.
        devices: GPUs that llama-server computes on; not known on a Mac, which has one.
        egress: Proxies and additional certificates for downloads, and for providers of routers.
    """

    host_name: str
    state_dir: Path
    store_dir: Path
    llama_server: str
    advertise_address: str | None = None
    bind_address: str = "127.0.0.1"
    engine_proxy: tuple[str, ...] = ()
    door: tuple[str, ...] = ()
    allow_from: tuple[str, ...] = ()
    insecure_lan: bool = False
    api_server: str = ""
    host_ip: str | None = None
    namespace: str | None = None
    selector: Selector = Selector()
    accelerators: frozenset[str] = frozenset({"metal"})
    endpoints_api: Literal["endpointslices", "endpoints"] = "endpointslices"
    lease_namespace: str = "llmkube-system"
    token_file: Path | None = None
    grace_seconds: float = 10.0
    metal_grace_seconds: float = METAL_GRACE_SECONDS
    drain_seconds: float = 30.0
    offline_seconds: float = 10.0
    withdraw_seconds: float = 2.0
    load_stall_seconds: float = 120.0
    hang_seconds: float = 60.0
    retry_cap_seconds: float = 60.0
    reassert_seconds: float = 600.0
    lease_renew_seconds: float = 5.0
    log_cap_bytes: int = 16 * 1024 * 1024
    metal: bool = sys.platform == "darwin"
    keep_awake: bool = False
    activation: str = ALWAYS
    prompt_cache_bytes: int = 0
    memory_fraction: float | None = None
    memory_guesses: bool = False
    memory_policy: Policy = Policy()
    private_sources: tuple[Network, ...] = ()
    local_sources: tuple[Path, ...] = ()
    local_sources_file: Path | None = None
    ollama_sources: AllowedModels = AllowedModels()
    s3_env_auth: bool = False
    hub_token_file: Path | None = None
    hub_endpoint: str = ENDPOINT
    allowances: Allowances = NO_ALLOWANCES
    programs: Mapping[str, str] = attrs.field(factory=dict)
    fronts: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    wrappers: Mapping[str, str] = attrs.field(factory=dict)
    variables: Mapping[str, str] = attrs.field(factory=dict)
    egress: Egress = DIRECTLY
    mlx_runtime: str = MLX_RUNTIME
    devices: tuple[Device, ...] = ()

    @property
    def publishes(self) -> bool:
        """Whether engines are reachable from outside this host."""
        return self.advertise_address is not None or bool(self.api_server)

    @property
    def watches_nodes(self) -> bool:
        """Whether the cluster's nodes are watched: their networks and this host itself need no key."""
        return bool(self.api_server) and not self.insecure_lan

    @property
    def keyless_networks(self) -> tuple[str, ...]:
        """Networks (CIDR) whose requests need no key at a proxy."""
        return EVERYWHERE if self.insecure_lan else self.allow_from

    @property
    def limits(self) -> Limits:
        """Time limits of the watches for stalled loads and hangs."""
        return Limits(still_seconds=self.hang_seconds, load_stall_seconds=self.load_stall_seconds)

    @property
    def longest_grace_seconds(self) -> float:
        """Longest grace period of any engine on this host."""
        return max(self.grace_seconds, self.metal_grace_seconds) if self.metal else self.grace_seconds

    @property
    def stop_seconds(self) -> float:
        """Longest time from the withdrawal of an engine to its TERM and the end of its grace."""
        saving = SAVE_SECONDS if self.prompt_cache_bytes else 0.0
        return self.withdraw_seconds + self.drain_seconds + saving + self.longest_grace_seconds

    @property
    def memory_rules(self) -> Rules:
        """Rules for this host's memory."""
        return Rules(
            self.memory_policy,
            self.memory_fraction,
            self.memory_guesses,
            gentle_seconds=self.stop_seconds + END_SLACK_SECONDS,
            urgent_seconds=self.grace_seconds + END_SLACK_SECONDS,
            devices={each.id: each.total_bytes for each in with_own_memory(self.devices)},
        )

    @property
    def field_manager(self) -> str:
        """The name under which this agent owns fields."""
        return f"llmkube-agent-{self.host_name}"

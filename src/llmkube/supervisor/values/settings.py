"""What an operator may tune about one host's agent; every number says its unit."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs

from llmkube.k8s.crd.pairing import MLX_RUNTIME
from llmkube.k8s.label_selectors import Selector
from llmkube.runtimes.allowances import NO_ALLOWANCES, Allowances
from llmkube.supervisor.memory.policy import Policy, Rules
from llmkube.supervisor.values.liveness import Limits
from llmkube.weights.address_policy import Network
from llmkube.weights.download.hugging_face import ENDPOINT
from llmkube.weights.ollama_model import AllowedModels

END_SLACK_SECONDS = 5.0
"""What an engine that gets TERM may take beyond its grace until it is gone for certain."""


METAL_GRACE_SECONDS = 30.0
"""The grace of an engine on Metal: the kernel may keep what the GPU had wired for one that is killed (oMLX issue 2184),
and to give back 373 GiB took one that ended by itself 4 s."""


EVERYWHERE = ("0.0.0.0/0", "::/0")


@attrs.frozen
class AgentSettings:
    """One host's agent, fully decided: nothing in here is looked up again later.

    Attributes:
        host_name: The name under which this host claims, publishes and reports; a DNS label.
        state_dir: Private folder (0700) for logs and working directories.
        store_dir: Where model files are kept.
        private_sources: Networks that the source of a Model may lead to although they are not public.
        local_sources: Folders of this host in which the source of a Model may name files.
        ollama_sources: The models of this host's Ollama that the source of a Model may name.
        s3_env_auth: Whether Models that name no Secret get objects with the AWS keys of the agent's environment.
        hub_token_file: Holds the token for Models from the hub that name no Secret; read whenever one is needed.
        hub_endpoint: The address of Hugging Face, or of a mirror of it.
        allowances: Flags and variables that services may use although LLMKube lets none use them.
        llama_server: Path of the llama-server program.
        programs: Paths of the programs of other runtimes, by runtime; one without is looked for by its name.
        fronts: The commands of the programs that run for each service of a shared daemon, by runtime.
        wrappers: The files that a program of another's Python runs before its own arguments, by runtime.
        variables: What all engines of this host find in their environment, such as where their owner's oMLX is.
        mlx_runtime: Which of the engines built on MLX serves `format: mlx` where none is named.
        advertise_address: The address that goes into EndpointSlices, or None to publish no Service and no slice
            (one machine, reached through the local gateway).
        bind_address: The address that engines listen on; never a wildcard.
        engine_proxy: The command of the proxy in front of a published engine; its settings' path is its argument.
        allow_from: The networks (CIDR) from which requests reach published engines without a key.
        insecure_lan: Whether published engines ask for no key at all.
        api_server: The API server's URL, when the advertised address is to follow the route to it and the networks that
            this host comes to; empty when `advertise_address` stands as given.
        host_ip: The operator's own choice of the advertised address, which is then only watched.
        namespace: The namespace to serve, or None for all.
        selector: Which services to serve, by their labels; an empty one selects all.
        accelerators: The `spec.hardware.accelerator` values that this host serves.
        endpoints_api: `endpointslices`, or `endpoints` for scripts that read the deprecated classic object.
        lease_namespace: The namespace of the host's Lease.
        token_file: The token of the host's own account, which the agent renews; None for credentials of another kind.
        grace_seconds: Between TERM and KILL.
        metal_grace_seconds: The same for an engine on Metal, unless memory is critically short.
        drain_seconds: How long requests in flight may take to end before an engine gets TERM.
        offline_seconds: How long an agent that starts waits for the API server before it runs what the journal says.
        withdraw_seconds: How long a stop waits for "not ready" to reach the API server before it goes on without.
        load_stall_seconds: For how long nothing may move while an engine loads; there is no clock on what moves.
        hang_seconds: For how long nothing may move in an engine that has work before it is replaced.
        retry_cap_seconds: The longest pause before a failed fetch is tried again.
        reassert_seconds: How often what was published is published again, in case another client removed it.
        lease_renew_seconds: How often the host's Lease is renewed; it expires after four times that.
        log_cap_bytes: An engine's log file is rotated when it grows beyond this.
        metal: Whether engines of this host compute on Metal, unless they are told not to.
        keep_awake: Whether this Mac is kept awake while an engine runs, and not only while one works.
        memory_fraction: Share of the host's memory that models may take; None for the default of its size.
        memory_guesses: Whether a model starts whose need is not known.
        memory_policy: When admission closes, when services are evicted and when they return.
    """

    host_name: str
    state_dir: Path
    store_dir: Path
    llama_server: str
    advertise_address: str | None = None
    bind_address: str = "127.0.0.1"
    engine_proxy: tuple[str, ...] = ()
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
    memory_fraction: float | None = None
    memory_guesses: bool = False
    memory_policy: Policy = Policy()
    private_sources: tuple[Network, ...] = ()
    local_sources: tuple[Path, ...] = ()
    ollama_sources: AllowedModels = AllowedModels()
    s3_env_auth: bool = False
    hub_token_file: Path | None = None
    hub_endpoint: str = ENDPOINT
    allowances: Allowances = NO_ALLOWANCES
    programs: Mapping[str, str] = attrs.field(factory=dict)
    fronts: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    wrappers: Mapping[str, str] = attrs.field(factory=dict)
    variables: Mapping[str, str] = attrs.field(factory=dict)
    mlx_runtime: str = MLX_RUNTIME

    @property
    def publishes(self) -> bool:
        """Whether engines are reached from outside this host."""
        return self.advertise_address is not None or bool(self.api_server)

    @property
    def watches_nodes(self) -> bool:
        """Whether the networks of a cluster's nodes, and this host itself, need no key: not where nothing does."""
        return bool(self.api_server) and not self.insecure_lan

    @property
    def keyless_networks(self) -> tuple[str, ...]:
        """The networks (CIDR) from which a proxy lets requests in without a key."""
        return EVERYWHERE if self.insecure_lan else self.allow_from

    @property
    def limits(self) -> Limits:
        """For how long what may stand still."""
        return Limits(still_seconds=self.hang_seconds, load_stall_seconds=self.load_stall_seconds)

    @property
    def longest_grace_seconds(self) -> float:
        """Between TERM and KILL, whatever an engine of this host computes on."""
        return max(self.grace_seconds, self.metal_grace_seconds) if self.metal else self.grace_seconds

    @property
    def memory_rules(self) -> Rules:
        """What holds for this host's memory."""
        return Rules(
            self.memory_policy,
            self.memory_fraction,
            self.memory_guesses,
            gentle_seconds=self.withdraw_seconds + self.drain_seconds + self.longest_grace_seconds + END_SLACK_SECONDS,
            urgent_seconds=self.grace_seconds + END_SLACK_SECONDS,
        )

    @property
    def field_manager(self) -> str:
        """The name under which this agent owns fields."""
        return f"llmkube-agent-{self.host_name}"

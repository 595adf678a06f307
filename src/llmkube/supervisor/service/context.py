"""State that all engines of one InferenceService share."""

from pathlib import Path

import attrs
from structlog.typing import FilteringBoundLogger

from llmkube.base.private_files import file_stem
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import EngineInfo
from llmkube.supervisor.engine.logfile import log_path
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.service.door_link import DoorLink
from llmkube.supervisor.service.engine_status import Leader
from llmkube.supervisor.service.gate import Gate
from llmkube.supervisor.service.measurement import key_of
from llmkube.supervisor.service.saved_prompts import PromptStore
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.need import need_of
from llmkube.supervisor.values.ports import Command, Ports, Shutdown
from llmkube.supervisor.values.settings import AgentSettings


@attrs.frozen
class ServiceContext:
    """State that all engines of one service share.

    Attributes:
        status_manager: Holds the service's facts and reports them.
        ports: Injected dependencies.
        settings: The host's settings.
        shutdown: Whether engines keep running when their tasks are cancelled.
        ledger: Admits engines to this host's memory.
        gate: Lets a launch pass while the service is wanted.
        door: The connection to the door; None on a host without one.
        leader: The engine that is reported.
        prompts: The saved prompts of this host.
    """

    status_manager: StatusManager
    ports: Ports
    settings: AgentSettings
    shutdown: Shutdown
    ledger: Ledger
    gate: Gate
    door: DoorLink | None = None
    leader: Leader = attrs.field(factory=Leader)
    prompts: PromptStore = attrs.field(kw_only=True)

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.status_manager.key

    @property
    def log(self) -> FilteringBoundLogger:
        """Logger that is bound to the service."""
        return self.status_manager.log

    @property
    def log_path(self) -> Path:
        """Log file of the engine that leads."""
        return log_path(self.settings.state_dir, self.key)

    async def need(self, launch: Launch) -> Need:
        """Return the memory that a launch needs: the estimate, or the learned figure if that is more."""
        figure = self.ports.learned.get(await key_of(launch, self.ports.engines))
        return need_of(launch, figure, self.settings.devices)

    def command(
        self, launch: Launch, engine: EngineInfo, cookie: str, *, host: str, port: int, keys: str = ""
    ) -> Command:
        """Return the command that starts the program of a launch, without API keys and proxy."""
        plan, model = launch.plan, str(launch.weights.path)
        argv = plan.render(engine, model=model, host=host, port=port, keys=keys)
        work_dir = self.settings.state_dir / "work" / self.key.namespace / file_stem(self.key.name)
        return Command(argv, dict(plan.env), work_dir, self.log_path, cookie)

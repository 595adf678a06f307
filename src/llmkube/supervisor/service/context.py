"""What all engines of one InferenceService share."""

from pathlib import Path

import attrs
from structlog.typing import FilteringBoundLogger

from llmkube.base.private_files import file_stem
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import EngineInfo
from llmkube.supervisor.engine.logfile import log_path
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.service.engine_status import Leader
from llmkube.supervisor.service.measurement import key_of
from llmkube.supervisor.service.status_manager import StatusManager
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.need import need_of
from llmkube.supervisor.values.ports import Command, Ports, Shutdown
from llmkube.supervisor.values.settings import AgentSettings


@attrs.frozen
class ServiceContext:
    """What all engines of one service share.

    Attributes:
        status_manager: Says what is true of the service.
        ports: The outside world.
        settings: The host's.
        shutdown: Whether engines stay when their tasks are cancelled.
        ledger: Who may take how much of this host's memory.
        leader: Which of the engines is reported.
    """

    status_manager: StatusManager
    ports: Ports
    settings: AgentSettings
    shutdown: Shutdown
    ledger: Ledger
    leader: Leader = attrs.field(factory=Leader)

    @property
    def key(self) -> Key:
        """The InferenceService's key."""
        return self.status_manager.key

    @property
    def log(self) -> FilteringBoundLogger:
        """Log lines that name the service."""
        return self.status_manager.log

    @property
    def log_path(self) -> Path:
        """Where the engine that leads writes to."""
        return log_path(self.settings.state_dir, self.key)

    async def need(self, launch: Launch) -> Need:
        """How much a launch will take: what was estimated, or learned if that is more."""
        return need_of(launch, self.ports.learned.get(await key_of(launch, self.ports.engines)))

    def command(
        self, launch: Launch, engine: EngineInfo, cookie: str, *, host: str, port: int, keys: str = ""
    ) -> Command:
        """Return how the program of a launch is started; what only an engine that serves needs is not in it."""
        plan, model = launch.plan, str(launch.weights.path)
        argv = plan.render(engine, model=model, host=host, port=port, keys=keys)
        work_dir = self.settings.state_dir / "work" / self.key.namespace / file_stem(self.key.name)
        return Command(argv, dict(plan.env), work_dir, self.log_path, cookie)

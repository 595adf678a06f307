"""What all engines of one InferenceService share."""

from pathlib import Path

import attrs

from llmkube.supervisor.engine.logfile import log_path
from llmkube.supervisor.memory.ledger import Ledger
from llmkube.supervisor.memory.reservation import Need
from llmkube.supervisor.nouns.need import need_of
from llmkube.supervisor.nouns.ports import Ports, Shutdown
from llmkube.supervisor.nouns.settings import AgentSettings
from llmkube.supervisor.nouns.target import Launch
from llmkube.supervisor.service.engine_status import Leader
from llmkube.supervisor.service.measuring import key_of
from llmkube.supervisor.service.status_manager import StatusManager


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
    def log_path(self) -> Path:
        """Where the engine that leads writes to."""
        return log_path(self.settings.state_dir, self.status_manager.key)

    async def need(self, launch: Launch) -> Need:
        """How much a launch will take: what was estimated, or learned if that is more."""
        return need_of(launch, self.ports.learned.get(await key_of(launch, self.ports.engines)))

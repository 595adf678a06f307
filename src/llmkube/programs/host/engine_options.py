"""What a host's owner lets services use beyond LLMKube's verdicts, checked and said before anything starts."""

import structlog

from llmkube.programs.config.host_config import HostConfig
from llmkube.runtimes.allowances import Allowances, parse_allowances
from llmkube.runtimes.llama_verdicts import OURS

log = structlog.get_logger()


def engine_allowances(config: HostConfig) -> Allowances:
    """Read the settings, and say in the log what they let every editor of a service do.

    Raises:
        UserError: One of them cannot be used; the sentence names its flag.
    """
    allowances = parse_allowances(config.allow_engine_flag, config.allow_engine_variable, ours=OURS)
    if allowances:
        log.warning(
            "services may use what this host's owner allows",
            flags=sorted(allowances.flags),
            variables=sorted(allowances.variables),
        )
    return allowances

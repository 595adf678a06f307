"""Why a reservation does not count."""

from llmkube.base.errors import WorldError


class BudgetsNotKeptError(WorldError):
    """What a request may take cannot be written down where it would hold, so the request is not sent."""

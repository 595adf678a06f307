"""The charge of an attempt for each kind of end."""

from decimal import Decimal

import pytest

from llmkube.router.budgets.meter import Consumption
from llmkube.router.budgets.usage import Usage
from llmkube.router.config.routing_config import Prices
from llmkube.router.dispatch.attempt_charges import charge_of

PRICES = Prices(prompt_usd=Decimal(1), completion_usd=Decimal(2))
COUNTED = Consumption(usage=Usage(3, 5), prices=PRICES)


@pytest.mark.parametrize(
    ("is_sent", "status", "usage", "charged"),
    [
        pytest.param(False, 0, None, Consumption(), id="never sent"),
        pytest.param(True, 0, None, None, id="silent, or broken off before an answer"),
        pytest.param(True, 429, None, Consumption(), id="refused"),
        pytest.param(True, 500, None, Consumption(), id="failed at once"),
        pytest.param(True, 307, None, Consumption(), id="sent elsewhere"),
        pytest.param(False, 413, None, Consumption(), id="refused half-way"),
        pytest.param(True, 200, Usage(3, 5), COUNTED, id="counted"),
        pytest.param(True, 200, None, None, id="not counted"),
        pytest.param(False, 200, None, None, id="answered half-way"),
    ],
)
def test_an_ending_has_one_charge(is_sent, status, usage, charged):
    """None is the reserved amount."""
    assert charge_of(is_sent=is_sent, status=status, usage=usage, prices=PRICES) == charged

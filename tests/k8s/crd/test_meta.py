"""Quantities, as the schema admits them."""

import re

import pytest

from llmkube.k8s.crd.meta import QUANTITY


@pytest.mark.parametrize(
    ("quantity", "admitted"),
    [
        *((text, True) for text in ("1", "0", "500m", "1.5", ".5", "2.", "24Gi", "8G", "1e9", "1E3", "10Ki", "3n")),
        *((text, False) for text in ("", "-1", "+1", "4.5.5Gi", "24GB", "lots", "1 Gi", "Gi", ".", "1e", "1mi")),
    ],
)
def test_quantity_pattern(quantity: str, admitted: bool) -> None:
    """An amount is what Kubernetes parses, without a sign."""
    assert bool(re.search(QUANTITY, quantity)) is admitted

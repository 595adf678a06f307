"""The admitted networks, as text and as a file."""

import pytest

from llmkube.supervisor.values.admitted_networks import AdmittedNetworks
from llmkube.supervisor.values.settings import EVERYWHERE


@pytest.mark.parametrize(
    ("admitted", "closed", "shown"),
    [
        (AdmittedNetworks(("10.1.0.0/16",), ("10.0.0.1/32",)), "", "10.0.0.1/32), --allow-from (10.1.0.0/16)"),
        (AdmittedNetworks(nodes=tuple(f"10.0.0.{each}/32" for each in range(9))), "", "10.0.0.7/32 and 1 more)"),
        (AdmittedNetworks(("10.1.0.0/9",), problem="refused"), "", "this machine, --allow-from (10.1.0.0/9); refused"),
        (AdmittedNetworks(problem="refused"), "refused, and no --allow-from", "this machine; refused"),
        (AdmittedNetworks(), "no nodes, and no --allow-from", "this machine"),
        (AdmittedNetworks(EVERYWHERE), "", "every address"),
    ],
)
def test_admitted_networks_are_reported_and_stored(admitted, closed, shown):
    """The file is read back with the same networks."""
    assert admitted.closed == closed
    assert admitted.summary.endswith(shown)
    assert AdmittedNetworks.load(admitted.dump()) == admitted


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"given": 1, "nodes": [], "problem": ""}'])
def test_another_text_is_no_file_of_networks(text):
    """A reader keeps its last networks."""
    with pytest.raises(ValueError):
        AdmittedNetworks.load(text)

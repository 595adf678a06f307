"""The mapping of the gateway's paths to routers."""

import pytest

from llmkube.k8s.resource import Key
from llmkube.programs.router_host.router_paths import router_url, split_target


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/routers/ml/front/v1/models", (Key("ml", "front"), "/v1/models")),
        ("/routers/ml/front/v1/models?a=/b", (Key("ml", "front"), "/v1/models?a=/b")),
        ("/routers/ml/front", (Key("ml", "front"), "/")),
        ("/routers/ml/front/", (Key("ml", "front"), "/")),
        ("/routers/ml", None),
        ("/routers//front/v1", None),
        ("/routers/", None),
        ("/v1/models", None),
        ("/routersml/front", None),
    ],
)
def test_a_target_is_split(target, expected):
    """Namespace, name, and the path within the router; other targets belong to no router."""
    assert split_target(target) == expected


def test_a_router_s_address_leads_to_it():
    """The gateway understands the address of the status."""
    url = router_url("http://127.0.0.1:8080", Key("ml", "front"))
    assert split_target(url.removeprefix("http://127.0.0.1:8080") + "/v1") == (Key("ml", "front"), "/v1")

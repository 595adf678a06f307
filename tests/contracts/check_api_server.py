"""The contract of an API server, as plain calls: what our client and kubectl rely on, of any server.

`check_api_server(client)` runs every check over any server that an httpx client can reach: the embedded one in memory
and over TLS always, a real kube-apiserver when there is one. Each check works in a namespace of its own.
"""

from collections.abc import Awaitable, Callable

import httpx

from contracts import check_controllers, check_reads, check_writes
from contracts.lab import Lab, install, open_lab
from contracts.widgets import widget_crd

CHECKS: tuple[Callable[[Lab], Awaitable[None]], ...] = tuple(
    check
    for room in (check_writes, check_reads, check_controllers)
    for name, check in vars(room).items()
    if name.startswith("check_")
)
"""Every check of the contract."""


async def check_api_server(http: httpx.AsyncClient) -> None:
    """Run the whole contract against one server."""
    await install(http, widget_crd())
    for check in CHECKS:
        async with open_lab(http) as lab:
            await check(lab)

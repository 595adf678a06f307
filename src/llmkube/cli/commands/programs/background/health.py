"""What a program of this machine answers at its port for probes."""

import httpx


async def probed_health(port: int) -> str:
    """Return what `/healthz` answers; "" without a port, and without a good answer within two seconds."""
    return (await _probed(port, "/healthz")).strip()


async def probed_metrics(port: int) -> str:
    """Return what `/metrics` answers, in the same way."""
    return await _probed(port, "/metrics")


async def _probed(port: int, path: str) -> str:
    if not port:
        return ""
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
        try:
            answer = await client.get(f"http://127.0.0.1:{port}{path}")
        except httpx.HTTPError:
            return ""
    return answer.text if answer.status_code == httpx.codes.OK else ""

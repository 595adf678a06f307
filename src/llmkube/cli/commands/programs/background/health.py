"""What a program of this machine answers at its port for probes."""

import httpx


async def probed_health(port: int) -> str:
    """Return what `/healthz` answers; "" without a port, and without a good answer within two seconds."""
    if not port:
        return ""
    async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
        try:
            answer = await client.get(f"http://127.0.0.1:{port}/healthz")
        except httpx.HTTPError:
            return ""
    return answer.text.strip() if answer.status_code == httpx.codes.OK else ""

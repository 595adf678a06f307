"""Periodic work of everybody on one host happens together, so that an idle machine sleeps in between."""

import math

import trio


async def wait_tick(period_seconds: float) -> None:
    """Sleep until Trio's clock next reaches a multiple of the period: all who share a period wake in one wake-up."""
    now = trio.current_time()
    await trio.sleep_until((math.floor(now / period_seconds) + 1) * period_seconds)

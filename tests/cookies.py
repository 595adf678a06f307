"""Cookies of the engines that tests start.

At the end of an engine every process of the machine with its cookie is killed: two tests with the same cookie, in two
workers or in two runs, would kill each other's processes.
"""

import secrets


def new_cookie() -> str:
    """Return a cookie that no process of this machine carries."""
    return f"test-{secrets.token_hex(8)}"

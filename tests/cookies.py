"""The marks of the engines that tests start.

The end of an engine kills every process of the machine that carries its cookie: two tests with the same one, in two
workers or in two runs, would kill each other's.
"""

import secrets


def new_cookie() -> str:
    """Return a cookie that no process of this machine carries."""
    return f"test-{secrets.token_hex(8)}"

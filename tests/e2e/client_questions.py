"""Definitions for the scripts of client libraries, which run with only the pinned packages on the path."""

import sys

SERVER, QUESTION = sys.argv[1:]
ASK = [{"role": "user", "content": QUESTION}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tell it", "parameters": PARAMETERS}}


def failure(call, *args, **kwargs):
    """Return the class of the error that a call raises, and its message."""
    try:
        call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the test asserts on its class
        return [type(error).__name__, str(error)]
    return ["nothing", ""]

"""The contract between a request that waits for its model and the program that loads it."""

from collections.abc import Callable
from contextlib import AbstractContextManager

Hold = Callable[[], AbstractContextManager[None]]
"""Opens a context in which a request waits for its model, and no engine has it."""

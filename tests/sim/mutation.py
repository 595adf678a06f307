"""Deliberate bugs: whether a timeline that one of them must not get through has noticed it."""

from llmkube.controller.reconciler import leaves


def is_caught(play):
    """Whether an assertion fails while a timeline is played; what breaks off beside that tells nothing."""
    try:
        play()
    except (AssertionError, ExceptionGroup) as error:
        return any(isinstance(leaf, AssertionError) for leaf in leaves(error))
    return False

"""Who asks: told by the key or the token that a request shows, and fixed for the whole of the request."""

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.base.http.connection import RequestFilter
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presented_credential
from llmkube.router.auth.key_files import ClientKeys
from llmkube.router.auth.token_checker import Rejection, TokenChecker
from llmkube.router.auth.token_form import looks_like_token
from llmkube.router.dialects.inbound import refusal_at
from llmkube.router.origin_policy import is_foreign_origin, is_preflight
from llmkube.router.policy.request_facts import Principal
from llmkube.router.refusals import refused

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""What shows no model and no request."""


@attrs.frozen(eq=False)
class ClientAuth:
    """What lets clients in.

    Attributes:
        keys: Those that were given out; None where there are none.
        tokens: Checks those of an issuer; None where none are taken.
    """

    keys: ClientKeys | None = None
    tokens: TokenChecker | None = None


def identify(headers: Headers, peer: str, clients: ClientAuth | None) -> Principal | Rejection | None:
    """Return who asks, or why a token is not accepted; None if nothing that counts is shown.

    Args:
        headers: The request's.
        peer: The address that it comes from.
        clients: None where everybody may ask.
    """
    if clients is None:
        return Principal(tenant=peer)
    credential = presented_credential(headers)
    if not credential:
        return None
    if clients.keys is not None:
        holder = clients.keys.holder_of(digest_of_key(credential))
        if holder is not None:
            return holder
    return clients.tokens.check(credential) if clients.tokens is not None and looks_like_token(credential) else None


def principal_of(headers: Headers, peer: str, clients: ClientAuth | None) -> Principal | None:
    """Return who asks; None if a key or a token is asked for and none that counts is shown."""
    found = identify(headers, peer, clients)
    return found if isinstance(found, Principal) else None


def can_authenticate(clients: ClientAuth | None) -> tuple[bool, str]:
    """Return whether some client can be let in now, and what is wrong with the keys of tokens."""
    if clients is None or clients.tokens is None:
        return True, ""
    keys = clients.tokens.keys
    problem = f"the keys of tokens: {keys.problem}" if keys.problem else ""
    return clients.keys is not None or clients.tokens.has_keys(), problem


def access_check(clients: Callable[[], ClientAuth | None], on_refused: Callable[[str], None]) -> RequestFilter:
    """Return what refuses a request by its head, before any of its body is read: no page from elsewhere, no stranger.

    Args:
        clients: Returns what lets clients in now.
        on_refused: Told what becomes of each that is refused for what it shows.
    """

    def check_access(head: RequestHead, peer: str) -> Response | None:
        if is_foreign_origin(head.lines):
            message = f"the web page {head.lines.get('origin')} may not use this router"
            return refused(403, message, "origin_refused").response
        if (head.path in OPEN_PATHS and is_read_only(head)) or is_preflight(head):
            return None
        current = clients()
        found = identify(head.lines, peer, current)
        if isinstance(found, Principal):
            return None
        on_refused("no_token_keys" if found in (Rejection.NO_KEYS, Rejection.KEYS_PENDING) else "unauthorized")
        return refusal_at(head.path, _refusal(found, current))

    return check_access


def _refusal(found: Rejection | None, clients: ClientAuth | None) -> Response:
    if found is not None:
        return _REFUSALS[found]
    if clients is not None and clients.tokens is not None:
        issuer = clients.tokens.tokens.provider
        message = f"this router asks for a token of {issuer}: send `Authorization: Bearer TOKEN`"
        return key_refusal(message if clients.keys is None else f"{message}, or a key in its place")
    return key_refusal("this router asks for a key: send `Authorization: Bearer KEY`; its operator gives them out")


_CHALLENGE: Final = 'Bearer error="invalid_token"'
_REFUSALS: Final[Mapping[Rejection, Response]] = {
    Rejection.EXPIRED: key_refusal(
        "this token has expired; get a new one of its issuer",
        code="token_expired",
        challenge=f'{_CHALLENGE}, error_description="The token expired"',
    ),
    Rejection.NOT_ACCEPTED: key_refusal("this token is not accepted", code="invalid_token", challenge=_CHALLENGE),
    Rejection.NO_KEYS: refused(
        503,
        "this router has no keys to check tokens with; its /readyz says why",
        "no_token_keys",
        {"Retry-After": "5"},
    ).response,
    Rejection.KEYS_PENDING: refused(
        503,
        "this token names a key that is new here; the keys of its issuer are read again, send the request once more",
        "token_keys_coming",
        {"Retry-After": "2"},
    ).response,
}
"""What a client is told. All that is wrong with a token but its age is one answer: it helps only who makes them up."""

"""Who asks: told by the key or the token that a request shows, and fixed for the whole of the request."""

from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.base.http.connection import Judge
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.auth.client_key import digest_of_key, key_refusal, only_reads, shown_key
from llmkube.router.auth.key_files import ClientKeys
from llmkube.router.auth.token_checker import TokenChecker, Unaccepted
from llmkube.router.auth.token_form import looks_like_token
from llmkube.router.dialects.inbound import refusal_at
from llmkube.router.origin_policy import is_foreign_origin, is_preflight
from llmkube.router.policy.request_facts import Principal
from llmkube.router.refusals import refused

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""What shows no model and no request."""


@attrs.frozen(eq=False)
class Clients:
    """What lets clients in.

    Attributes:
        keys: Those that were given out; None where there are none.
        tokens: Checks those of an issuer; None where none are taken.
    """

    keys: ClientKeys | None = None
    tokens: TokenChecker | None = None


def identified(headers: Headers, peer: str, clients: Clients | None) -> Principal | Unaccepted | None:
    """Return who asks, or why a token is not accepted; None if nothing that counts is shown.

    Args:
        headers: The request's.
        peer: The address that it comes from.
        clients: None where everybody may ask.
    """
    if clients is None:
        return Principal(tenant=peer)
    shown = shown_key(headers)
    if not shown:
        return None
    if clients.keys is not None:
        holder = clients.keys.holder_of(digest_of_key(shown))
        if holder is not None:
            return holder
    return clients.tokens.check(shown) if clients.tokens is not None and looks_like_token(shown) else None


def principal_of(headers: Headers, peer: str, clients: Clients | None) -> Principal | None:
    """Return who asks; None if a key or a token is asked for and none that counts is shown."""
    found = identified(headers, peer, clients)
    return found if isinstance(found, Principal) else None


def lets_clients_in(clients: Clients | None) -> tuple[bool, str]:
    """Return whether some client can be let in now, and what is wrong with the keys of tokens."""
    if clients is None or clients.tokens is None:
        return True, ""
    keys = clients.tokens.keys
    note = f"the keys of tokens: {keys.problem}" if keys.problem else ""
    return clients.keys is not None or clients.tokens.has_keys(), note


def judge_of(clients: Callable[[], Clients | None], on_refused: Callable[[str], None]) -> Judge:
    """Return what refuses a request by its head, before any of its body is read: no page from elsewhere, no stranger.

    Args:
        clients: Returns what lets clients in now.
        on_refused: Told what becomes of each that is refused for what it shows.
    """

    def judge(head: RequestHead, peer: str) -> Response | None:
        if is_foreign_origin(head.lines):
            words = f"the web page {head.lines.get('origin')} may not use this router"
            return refused(403, words, "origin_refused").response
        if (head.path in OPEN_PATHS and only_reads(head)) or is_preflight(head):
            return None
        let_in = clients()
        found = identified(head.lines, peer, let_in)
        if isinstance(found, Principal):
            return None
        on_refused("no_token_keys" if found in (Unaccepted.NO_KEYS, Unaccepted.KEYS_COMING) else "unauthorized")
        return refusal_at(head.path, _refusal(found, let_in))

    return judge


def _refusal(found: Unaccepted | None, clients: Clients | None) -> Response:
    if found is not None:
        return _REFUSALS[found]
    if clients is not None and clients.tokens is not None:
        issuer = clients.tokens.tokens.provider
        words = f"this router asks for a token of {issuer}: send `Authorization: Bearer TOKEN`"
        return key_refusal(words if clients.keys is None else f"{words}, or a key in its place")
    return key_refusal("this router asks for a key: send `Authorization: Bearer KEY`; its operator gives them out")


_CHALLENGE: Final = 'Bearer error="invalid_token"'
_REFUSALS: Final[Mapping[Unaccepted, Response]] = {
    Unaccepted.EXPIRED: key_refusal(
        "this token has expired; get a new one of its issuer",
        code="token_expired",
        challenge=f'{_CHALLENGE}, error_description="The token expired"',
    ),
    Unaccepted.NOT_ACCEPTED: key_refusal("this token is not accepted", code="invalid_token", challenge=_CHALLENGE),
    Unaccepted.NO_KEYS: refused(
        503,
        "this router has no keys to check tokens with; its /readyz says why",
        "no_token_keys",
        {"Retry-After": "5"},
    ).response,
    Unaccepted.KEYS_COMING: refused(
        503,
        "this token names a key that is new here; the keys of its issuer are read again, send the request once more",
        "token_keys_coming",
        {"Retry-After": "2"},
    ).response,
}
"""What a client is told. All that is wrong with a token but its age is one answer: it helps only who makes them up."""

"""Identify the principal of a request by its key or token, once for the whole request."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import attrs

from llmkube.base.http.connection import RequestFilter
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.auth.client_key import digest_of_key, is_read_only, key_refusal, presented_credential
from llmkube.router.auth.key_files import KeyHolders
from llmkube.router.auth.token_checker import Rejection, TokenChecker
from llmkube.router.auth.token_form import looks_like_token
from llmkube.router.dialects.inbound import refusal_at
from llmkube.router.origin_policy import is_foreign_origin, is_preflight
from llmkube.router.policy.request_facts import Principal
from llmkube.router.refusals import refused

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Paths that reveal no model and no request, and so need no authentication."""


@attrs.frozen(eq=False)
class ClientAuth:
    """The credentials that a router accepts.

    Attributes:
        keys: None if the router accepts no keys.
        tokens: None if the router accepts no tokens.
    """

    keys: KeyHolders | None = None
    tokens: TokenChecker | None = None


def identify(headers: Headers, peer: str, clients: ClientAuth | None) -> Principal | Rejection | None:
    """Return the principal of a request, or why its token or key is rejected; None if it has no valid credential.

    Args:
        headers: The request's headers.
        peer: Address of the client, with its user where that is known.
        clients: None if the router needs no authentication.
    """
    if clients is None:
        return Principal(tenant=peer, is_owner=True)
    credential, digest = headers.derived(_credential)
    if not credential:
        return None
    if clients.keys is not None:
        holder = clients.keys.holder_of(digest)
        if holder is not None:
            return holder
        if clients.keys.has_expired(digest):
            return Rejection.KEY_EXPIRED
    return clients.tokens.check(credential) if clients.tokens is not None and looks_like_token(credential) else None


def _credential(headers: Headers) -> tuple[str, bytes]:
    """Return the credential of a request and its digest; "" if there is none."""
    credential = presented_credential(headers)
    return credential, digest_of_key(credential)


def principal_of(headers: Headers, peer: str, clients: ClientAuth | None) -> Principal | None:
    """Return the principal of a request; None if the router needs a credential and the request has no valid one."""
    found = identify(headers, peer, clients)
    return found if isinstance(found, Principal) else None


def can_authenticate(clients: ClientAuth | None) -> tuple[bool, str]:
    """Return whether any client can be authenticated now, and the problem of the token keys; "" if there is none."""
    if clients is None or clients.tokens is None:
        return True, ""
    keys = clients.tokens.keys
    problem = f"token keys: {keys.problem}" if keys.problem else ""
    return clients.keys is not None or clients.tokens.has_keys(), problem


def access_check(
    clients: Callable[[], ClientAuth | None], on_refused: Callable[[str], None], *, https_proxy_pages: bool = True
) -> RequestFilter:
    """Return a filter that refuses foreign web pages and unauthenticated clients before the body is read.

    Args:
        clients: Returns the credentials accepted now.
        on_refused: Called with the outcome of each request that is refused for its credential.
        https_proxy_pages: Whether pages behind an https proxy are near.
    """
    is_foreign = partial(is_foreign_origin, https_proxy_pages=https_proxy_pages)

    def check_access(head: RequestHead, peer: str) -> Response | None:
        if head.lines.derived(is_foreign):
            message = f"the web page {head.lines.get('origin')} may not use this router; serve the page on this network"
            return refusal_at(head.path, refused(403, message, "origin_refused").response)
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
        message = f"this router requires a token from {issuer}: send `Authorization: Bearer TOKEN`"
        return key_refusal(message if clients.keys is None else f"{message}, or a key instead")
    return key_refusal("this router requires a key: send `Authorization: Bearer KEY`; its operator issues keys")


KEY_EXPIRED: Final = key_refusal("this key has expired; its operator issues another one", code="key_expired")
_CHALLENGE: Final = 'Bearer error="invalid_token"'
_REFUSALS: Final[Mapping[Rejection, Response]] = {
    Rejection.EXPIRED: key_refusal(
        "this token has expired; get a new one from its issuer",
        code="token_expired",
        challenge=f'{_CHALLENGE}, error_description="The token expired"',
    ),
    Rejection.NOT_ACCEPTED: key_refusal("this token is not accepted", code="invalid_token", challenge=_CHALLENGE),
    Rejection.KEY_EXPIRED: KEY_EXPIRED,
    Rejection.NO_KEYS: refused(
        503, "this router has no keys to verify tokens; its /readyz shows why", "no_token_keys", {"Retry-After": "5"}
    ).response,
    Rejection.KEYS_PENDING: refused(
        503,
        "this token names an unknown key; the issuer's keys are being read again, so retry the request",
        "token_keys_coming",
        {"Retry-After": "2"},
    ).response,
}
"""Responses to clients. All defects of a token but its age share one message: details would only help forgers."""

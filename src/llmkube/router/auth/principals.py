"""Who asks: told by the key that a request shows, found by its digest, and fixed for the whole of the request."""

from collections.abc import Callable
from typing import Final

from llmkube.base.http.connection import Judge
from llmkube.base.http.heads import RequestHead
from llmkube.base.http.message import Headers, Response
from llmkube.router.auth.client_key import digest_of_key, key_refusal, only_reads
from llmkube.router.auth.key_files import ClientKeys
from llmkube.router.dialects.inbound import refusal_at
from llmkube.router.origin_policy import is_foreign_origin, is_preflight
from llmkube.router.policy.request_facts import Principal
from llmkube.router.refusals import refused

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""What shows no model and no request."""

_TENANT_DIGITS: Final = 16


def shown_key(headers: Headers) -> str:
    """Return the key that a request shows, "" if none: a Bearer, else `X-Api-Key`."""
    scheme, _, bearer = (headers.get("authorization") or "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key") or ""


def principal_of(headers: Headers, peer: str, keys: ClientKeys | None) -> Principal | None:
    """Return who asks; None if a key is asked for and none that counts is shown.

    Args:
        headers: The request's.
        peer: The address that it comes from.
        keys: None where clients need none.
    """
    key = shown_key(headers)
    if keys is None:
        return Principal(tenant=peer)
    digest = digest_of_key(key)
    team = keys.team_of(digest) if key else None
    return None if team is None else Principal(team=team, tenant=digest.hex()[:_TENANT_DIGITS])


def judge_of(keys: Callable[[], ClientKeys | None], on_refused: Callable[[], None]) -> Judge:
    """Return what refuses a request by its head, before any of its body is read: no page from elsewhere, no stranger.

    Args:
        keys: Returns the keys that count now.
        on_refused: Told of each that shows no key that counts.
    """

    def judge(head: RequestHead, peer: str) -> Response | None:
        if is_foreign_origin(head.lines):
            words = f"the web page {head.lines.get('origin')} may not use this router"
            return refused(403, words, "origin_refused").response
        if (head.path in OPEN_PATHS and only_reads(head)) or is_preflight(head):
            return None
        if principal_of(head.headers, peer, keys()) is not None:
            return None
        on_refused()
        words = "this router asks for a key: send `Authorization: Bearer KEY`; its operator gives them out"
        return refusal_at(head.path, key_refusal(words))

    return judge

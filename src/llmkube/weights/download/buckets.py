"""Objects in buckets: their URLs, and signed requests for S3, MinIO and compatible servers.

Signature Version 4 as AWS documents it ("Authenticating Requests: Using the Authorization Header"), for requests
without a body. Credentials and server come from the variables of AWS's tools:

| variable | meaning |
|---|---|
| `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` | the access key; without it the bucket must be public |
| `AWS_SESSION_TOKEN` | the session token of a temporary key |
| `AWS_REGION`, else `AWS_DEFAULT_REGION` | the region of the bucket; defaults to us-east-1 |
| `AWS_ENDPOINT_URL` | a server other than AWS, such as MinIO |
"""

import datetime
import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from llmkube.weights.errors import SourceError
from llmkube.weights.urls import BadUrlError, WebUrl, parse_url

ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
REGION, DEFAULT_REGION, ENDPOINT = "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"

VARIABLES: Final = (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, REGION, DEFAULT_REGION, ENDPOINT)
"""The variables that are read from a Secret or an environment."""

LOCATION_VARIABLES: Final = (REGION, DEFAULT_REGION, ENDPOINT)
"""Those of them that locate a bucket and are no credentials."""

_FALLBACK_REGION: Final = "us-east-1"
_REGION: Final = re.compile(r"[a-z0-9-]{1,32}")
_HEADER_VALUE: Final = re.compile(r"[!-~]{1,4096}")  # valid in a header
_EMPTY_DIGEST: Final = hashlib.sha256(b"").hexdigest()  # the digest of the empty body of a GET


@attrs.frozen
class BucketAccess:
    """The credentials and the server of buckets; without a key, requests are not signed.

    Attributes:
        key_id: The id of the access key.
        secret: The secret key; it signs requests and is never sent.
        session_token: Sent with a temporary key.
        region: The region of the buckets.
        endpoint: Another server than AWS; None for AWS.
    """

    key_id: str = ""
    secret: str = attrs.field(default="", repr=False)
    session_token: str = attrs.field(default="", repr=False)
    region: str = _FALLBACK_REGION
    endpoint: WebUrl | None = None

    @classmethod
    def read(cls, values: Mapping[str, str], *, where: str = "the environment") -> "BucketAccess":
        """Parse the variables; empty ones are ignored.

        Raises:
            SourceError: One half of the key is missing, or a value is invalid; the message does not contain it.
        """
        given = {name: text for name in VARIABLES if (text := values.get(name, "").strip())}
        for one, other in ((ACCESS_KEY, SECRET_KEY), (SECRET_KEY, ACCESS_KEY), (SESSION_TOKEN, ACCESS_KEY)):
            if one in given and other not in given:
                raise SourceError(f"{where} has {one}, but no {other}; set both")
        for name in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN):
            if name in given and not _HEADER_VALUE.fullmatch(given[name]):
                raise SourceError(f"{name} in {where} is not one word of ASCII")
        region = given.get(REGION) or given.get(DEFAULT_REGION, _FALLBACK_REGION)
        if not _REGION.fullmatch(region):
            raise SourceError(f"{REGION} in {where} is not a region such as eu-central-1")
        endpoint = None
        if ENDPOINT in given:
            try:
                endpoint = parse_url(given[ENDPOINT])[0]
            except BadUrlError as exc:
                raise SourceError(f"{ENDPOINT} in {where} is not a valid URL: {exc}") from exc
        key_id, secret, session = (given.get(name, "") for name in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN))
        return cls(key_id, secret, session, region, endpoint)

    @property
    def server(self) -> str:
        """The server of the objects, which distinguishes objects with the same name; empty for AWS."""
        return str(self.endpoint) if self.endpoint is not None else ""

    def url(self, bucket: str, path: str) -> WebUrl:
        """Return the URL of an object: on the bucket's own host at AWS, below the bucket's path elsewhere."""
        # All other bytes are escaped, as the server does when it checks the signature.
        target = "/" + urllib.parse.quote(path, safe="/-_.~")
        if self.endpoint is not None:
            return attrs.evolve(self.endpoint, target=f"{self.endpoint.path.rstrip('/')}/{bucket}{target}")
        host = f"s3.{self.region}.amazonaws.com"
        if "." in bucket or "_" in bucket or bucket != bucket.lower():  # no certificate covers such a bucket's host
            return WebUrl("https", host, 443, f"/{bucket}{target}")
        return WebUrl("https", f"{bucket}.{host}", 443, target)


@attrs.frozen
class Signer:
    """Signs each request for one origin when it is sent: a signature is valid for a quarter of an hour."""

    origin: tuple[str, str, int]
    access: BucketAccess = attrs.field(repr=False)
    utcnow: Callable[[], datetime.datetime]

    def headers(self, url: WebUrl, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the additional headers for a GET with these headers."""
        return sign(url, headers, self.access, self.utcnow())


def sign(url: WebUrl, headers: Mapping[str, str], access: BucketAccess, now: datetime.datetime) -> dict[str, str]:
    """Return the headers that sign a GET; the signature covers them, the given headers and the host."""
    moment = now.astimezone(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": moment, "x-amz-content-sha256": _EMPTY_DIGEST}
    if access.session_token:
        added["x-amz-security-token"] = access.session_token
    signed = {name.lower(): value.strip() for name, value in {**headers, **added, "host": url.netloc}.items()}
    names = ";".join(sorted(signed))
    path, _, query = url.target.partition("?")
    pairs = sorted(pair if "=" in pair else f"{pair}=" for pair in query.split("&") if pair)
    lines = [f"{name}:{signed[name]}" for name in sorted(signed)]
    request = "\n".join(["GET", path, "&".join(pairs), *lines, "", names, _EMPTY_DIGEST])
    scope = f"{moment[:8]}/{access.region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{access.secret}".encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    added["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access.key_id}/{scope},SignedHeaders={names},Signature={key.hex()}"
    )
    return added

"""The one HTTP/1.1 server and client for every engine, probe and gateway byte, on Trio."""

from llmkube.base.http.client import Connect, HttpClient, StreamedResponse, open_http_client
from llmkube.base.http.errors import (
    BodyTooLargeError,
    BrokenOffError,
    ClientGoneError,
    ConnectError,
    HttpError,
    ProtocolError,
)
from llmkube.base.http.exchange import Exchange, Handler, SendChunk
from llmkube.base.http.limits import Limits
from llmkube.base.http.listen import ListenError, PortTakenError, open_listeners
from llmkube.base.http.message import Headers, Request, Response
from llmkube.base.http.server import run_server, serve_connection

__all__ = [
    "BodyTooLargeError",
    "BrokenOffError",
    "ClientGoneError",
    "Connect",
    "ConnectError",
    "Exchange",
    "Handler",
    "Headers",
    "HttpClient",
    "HttpError",
    "Limits",
    "ListenError",
    "PortTakenError",
    "ProtocolError",
    "Request",
    "Response",
    "SendChunk",
    "StreamedResponse",
    "open_http_client",
    "open_listeners",
    "run_server",
    "serve_connection",
]

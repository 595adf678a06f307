"""HTTP/1.1 on Trio, for engines, probes, the gateway and the API server. No HTTP/2, no cookies, no redirects.

message, heads, bodies, limits, errors  pure: messages, llhttp's grammar, framing, bounds
websocket                        the client's side of a WebSocket
hub, listen                      sockets: one task waits for all; a clear word when a port is taken
dial, tls                        the one module that opens connections; TLS for a client, into memory that it has
client, streamed_response        pooled connections; answers as they come
httpx_transport                  httpx's requests over the same connections
server, connection, exchange     one task per connection, one answer per request
forward                          a proxy's data path: server in front, client behind
"""

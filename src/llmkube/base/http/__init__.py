"""HTTP/1.1 on Trio, for engines, probes, the gateway and the API server. No HTTP/2, no cookies, no redirects.

message, heads, bodies, limits, errors  pure: messages, llhttp's grammar, framing, limits
websocket                        WebSocket client
hub, listen                      sockets: one task waits for all; clear errors when a port is taken
dial, tls                        the only module that opens connections; TLS client that can decrypt into buffers
egress, outbound                 pure: the proxy of each server; connections and certificates as it defines them
client, streamed_response        pooled connections; streamed responses
httpx_transport                  httpx's requests over the same connections
server, connection, exchange     one task per connection, one response per request
forward                          a proxy's data path: server in front, client behind
"""

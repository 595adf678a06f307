"""HTTP/1.1 on Trio, for engines, probes, the gateway and the API server. No HTTP/2, no cookies, no redirects.

message, heads, bodies, limits, errors  pure: messages, llhttp's grammar, framing, bounds
client                           pooled connections, streams
server, exchange                 one task per connection, one answer per request
listen                           sockets, and a clear word when a port is taken
"""

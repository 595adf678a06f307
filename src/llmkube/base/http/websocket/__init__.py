"""The client's side of a WebSocket.

session  a connection with its deadlines: send, receive, close
frames   the handshake's judge and the frames; pure
"""

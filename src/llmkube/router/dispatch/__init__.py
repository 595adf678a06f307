"""Carry a decision out: one permitted backend after the other, until the client has its answer.

dispatcher       one backend after the other, until one answers; another engine goes on with an answer whose engine died
backend_call     one backend is asked, with slots in its turn, and its answer given to the client
attempt          a request to one backend, up to where its answer has begun; attempt_charges: what it is charged
relay            a stream to its end, as the client reads it
record           what all of them work on, and what became of it
transport        the one way to a backend: it dials with a Permit
circuits         when a backend is left alone, and what requests have shown of it
verdicts         what leads on to the next; event_stream: what is in a stream
request_body     what of a body passes; passed_headers: what of a head
"""

"""The data path of a router: what a client asks is decided on by `router.policy`, and carried out here.

router           one router, with all that its requests share
live_config      its config, which may change while it runs
handler          answers clients; record: what became of a request
dispatch         one backend after the other, until one answers
attempt          a request to one backend, up to where its answer has begun
relay            a stream to its end; client_stream: what the client reads of it
shadows          copies to backends that are tried out
transport        the one way to a backend: it dials with a Permit
observed         what requests have shown of backends
circuits         when a backend is left alone; verdicts: what leads on to the next; event_stream: what is in a stream
request_body     what of a body passes; passed_headers: what of a head
metrics, audit_log  what the operator reads; admin: who may
"""

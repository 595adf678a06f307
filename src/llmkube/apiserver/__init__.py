"""The embedded Kubernetes API server of `llmkube up` and of the tests: a handler over a store in memory.

    app                      dispatches a request
    protocol                 bytes and URLs: routes, bodies, lists, watches, tables, OpenAPI
    writes                   what create, update, patch, apply and delete decide
    kinds                    which kinds there are, and the rules of each built-in one
    fields, schema           server-side apply and field ownership; defaults, validation and CEL
    storage                  revisions in memory, the write-ahead log, group commit
    values                   JSON, errors, names and selectors, as Kubernetes words them
    heavy_work               writes, in a thread beside the event loop
    server, pki, token_auth  TLS on a socket
    memory_transport         httpx without a socket
It runs no controllers; only garbage collection and the expiry of Events go on by themselves.
"""

"""The embedded Kubernetes API server of `llmkube up` and of the tests: a handler over a store in memory.

    app                      dispatches a request
    protocol                 bytes and URLs: routes, bodies, lists, watches, tables, OpenAPI
    writes                   create, update, patch, apply and delete, as decisions on a transaction
    kinds                    the kinds that are served, and the rules of each built-in one
    fields, schema           server-side apply and field ownership; defaults, validation and CEL
    storage                  revisions in memory, the write-ahead log, group commit
    values                   JSON, errors, names and selectors, worded as in Kubernetes
    heavy_work               runs writes in a thread
    server, pki              TLS on a socket, one token
    memory_transport         httpx without a socket
It runs no controllers; it only collects garbage and expires Events.
"""

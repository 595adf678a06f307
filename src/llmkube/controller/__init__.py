"""The controller: serves models with pods in a cluster, and keeps the status of all objects up to date.

    operator                                    wires everything; runs while it holds the Lease
    informers, event_handlers, reconciler       caches, what a change enqueues, and the workers
    reconcile                                   one key: read, decide, write
    render                                      manifests from objects; pure
    status                                      phases and conditions from the observed state; pure
    writes                                      applies and status writes, only where something differs
    health                                      kinds that cannot be listed, for /readyz and the metrics
    rights, policies                            rights of the controller in the API server
Agents run the engines on hosts; for those the controller only derives the status.
"""

"""The program in the cluster: it serves models with pods, and keeps the status of all objects true.

    operator                                    wires everything; runs while it holds the Lease
    informers, event_handlers, reconciler       what is known, what a change wakes, and how it is worked off
    reconcile                                   one key: read, decide, write
    render                                      manifests from objects; pure
    status                                      phases and conditions from what is there; pure
    writes                                      applies and status writes, on a difference only
Engines on hosts are the supervisor's; of those the controller only derives status.
"""

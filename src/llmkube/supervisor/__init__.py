"""The program on a host: it runs the engines of InferenceServices as processes inside a memory budget.

    agent, services  wires everything; one task tree per InferenceService, and what it is told of its host
    service          one InferenceService: plan, run, report
    engine           processes: spawn, watch, end, find again
    memory           who may start, and who has to end
    cluster          Leases, claims, status and endpoints in the API server
    credentials      what Secrets say: tokens for sources, API keys of clients
    rights, host_policies, host_token  what agents may do to the API server, and a host's token
    credential_monitor, host_cordon  whether the API server lets the host in, and its owner has taken it back
    host             what the kernel says of this machine
    nouns            values that all of them share
It creates no pods, and never waits for the API server before it serves.
"""

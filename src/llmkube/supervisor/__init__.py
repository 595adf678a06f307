"""The agent: run the engines of InferenceServices on a host as processes, inside a memory budget.

    agent, services                  wires everything; one task tree per InferenceService
    service                          one InferenceService: plan, run, report
    engine                           processes: spawn, watch, stop, find again
    memory                           budget, admission, eviction
    cluster                          Leases, claims, status and endpoints in the API server
    credentials                      tokens for sources, and API keys of clients, from Secrets
    rights, host_policies            rights of agents in the API server
    credential_monitor               renewal and state of the host's credential
    host_cordon                      cordon by the host's owner
    local, network, metrics          this machine as a dependency; its addresses; Prometheus metrics
    host, power                      the kernel's figures of this machine; power and energy
    values                           values that all of them share
It creates no pods, and never waits for the API server before it serves.
"""

"""What the agent writes to the API server and reads of other agents.

applier, drift_repair                the newest manifest per object, repeated until it is answered
host_lease, sleep_detection          this host is alive, and whether it slept
claims, claim_index                  which host serves which service; pure
node_monitor, node_networks          the networks that need no key, from the cluster's nodes
claim_manager, claim_leases          what follows from that, and the Leases that are claims
status, endpoints, stale_endpoints   what is written
"""

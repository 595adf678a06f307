"""What the agent tells the API server and hears of other agents.

applier, drift_repair               the newest manifest per object, repeated until it is heard
host_lease, sleep_detection         this host is alive, and whether it slept
claim_manager, claims               which host serves which service
status, endpoints, stale_endpoints  what is written
"""

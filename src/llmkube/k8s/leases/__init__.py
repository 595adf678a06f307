"""Leases: leader election and the liveness of hosts.

lease         holds a Lease while a body runs; the body is cancelled when the Lease is lost
live_hosts    the hosts whose Leases are renewed; pure
host_monitor  watches the hosts' Leases
"""

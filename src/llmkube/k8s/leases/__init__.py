"""Leases: leader election, the liveness of hosts, and the services that front doors need.

lease              holds a Lease while a body runs; the body is cancelled when the Lease is lost
live_hosts         the hosts whose Leases are renewed; pure
host_monitor       watches the hosts' Leases
wanted_services    the services that front doors need now; pure
scale_up_requests  records what a front door needs
"""

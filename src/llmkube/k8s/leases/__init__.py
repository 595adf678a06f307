"""Leases: who leads, and which hosts are alive.

lease         held for as long as a body runs; the body is cancelled when the Lease is lost
live_hosts    the hosts whose Leases are renewed; pure
host_monitor  follows the hosts' Leases
"""

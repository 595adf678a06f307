"""Write to the API server, and read what other agents write.

applier                       applies the newest manifest of each object, with retries; removes leftovers; restores a
                              status that another client has overwritten
host_lease                    renews this host's Lease; detects sleep
claims                        decides which host serves which service; pure
claim_manager                 creates, takes over and deletes the Leases that are claims
node_monitor                  watches the cluster's nodes, whose networks need no key
status                        slots, and the status of services and Models
"""

"""What the agent writes to the API server and reads of other agents.

applier                       the newest manifest per object, repeated until it is answered; what others have left
drift_repair                  what another client has overwritten is written again
host_lease                    this host is alive, and whether it slept
claims                        which host serves which service; pure
claim_manager                 what follows from that, and the Leases that are claims
node_monitor                  the networks that need no key, from the cluster's nodes
status                        what an agent writes to, and what a service's and a Model's status says
"""

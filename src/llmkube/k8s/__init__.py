"""A Kubernetes client on Trio, and the project's own kinds. It decides nothing about models or hosts.

client, request, exchange, errors, auth     one request
reflector, watch, workqueue                 list and watch into a cache, keys into work
port_forward                                a connection to a port of a pod
leases                                      leader election, and which hosts are alive
events, rbac                                Events, rights beside the code
fields, codec, resource                     typed objects to JSON and back
builtins, workloads, crd                    kinds of Kubernetes, of other projects, and ours
wire                                        what agent, controller and CLI say to each other
"""

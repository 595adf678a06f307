"""A Kubernetes client on Trio, and the project's own kinds. It decides nothing about models or hosts.

client, request, errors, auth, http_sender  one request
reflector, watch, workqueue                 list and watch into a cache, keys into work
port_forward                                a connection to a port of a pod
lease, events, rbac                         leader election, Events, rights beside the code
live_hosts, host_monitor                    which hosts are alive
fields, codec, versions, resource           typed objects to JSON and back
builtins, workloads, crd                    kinds of Kubernetes, and ours
wire                                        what agent, controller and CLI say to each other
"""

"""A Kubernetes client on Trio, and the project's own kinds. It makes no decisions about models or hosts.

client, request, exchange, errors, auth     one request
reflector, watch, informer, workqueue       list and watch into a cache with indexes; queue keys for workers
port_forward                                connections to ports of pods
leases                                      leader election, and which hosts are alive
events, rbac, admission_policies            Events; permissions, declared next to the code that needs them; policies
fields, codec, resource                     typed objects to JSON and back
builtins, workloads, crd                    kinds of Kubernetes, of other projects, and our own
wire                                        the vocabulary that agent, controller and CLI share
"""

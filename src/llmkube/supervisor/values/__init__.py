"""Values that the packages of the supervisor share.

desired                         desired state of a service, and the target that should run for it
activation                      whether a service is loaded, and for whom
journal                         entries on disk from which the next agent adopts engines
lifecycle, liveness             states of a service; hang detection
api_keys                        API keys of clients, and their digest
proxy_config                    configuration of the proxy of a published engine
door_state                      lines between an agent and the door of its host
admitted_networks               networks that reach published engines without a key
ports                           the agent's dependencies, as protocols
host_credential, join_record    state of the host's credential, and the rights that `agent join` granted
cordon                          cordon of the host by its owner
host_addresses, settings, need  addresses, settings, memory need of a launch
"""

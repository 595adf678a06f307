"""Values that the rooms of the supervisor share; they do nothing by themselves.

desired                         what is wished, and what should run for it
journal                         what an agent leaves for the next one
lifecycle, liveness             states of a service; does an engine hang
api_keys                        the API keys of clients: parsed, and their digest
proxy_config                    what the proxy of a published engine is told
admitted_networks               which networks reach published engines without a key
ports                           what the agent needs of the outside world, as protocols
host_credential, join_record    how the host's credential does, and what `agent join` has granted
cordon                          that the host's owner has taken it back
host_addresses, settings, need  addresses, configuration, what a launch needs
"""

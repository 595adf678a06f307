"""`llmkube up --listen`: the gateway at an address of this machine that others reach.

listen_options  which address, and the keys that requests show
lan_listener    the address comes and goes
"""

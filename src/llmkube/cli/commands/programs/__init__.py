"""The programs that run until they are stopped: agent, controller, apiserver and up, with the settings they share.

    agent, controller, apiserver, up  one command each
    one_machine                       what `up` runs in its process, and `up --ask`
    engine_proxy                      what an agent starts in front of a published engine
    join, join_grant, join_token      an account for a host: what it is granted, and a token that stands for that
    host_identity                     what the host keeps of it
    background                        `up start`, `up install`: without a terminal, and at login
    lan_gateway                       `up --listen`: the gateway for other machines
    *_options, host_name, state_dir   parts of their command lines
    engine_program                    which llama-server runs

What the programs do is in `supervisor`, `controller`, `apiserver` and `router`; here they are started.
"""

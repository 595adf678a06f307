"""The programs that run until they are stopped: agent, controller, apiserver and up, with the settings they share.

    agent, controller, apiserver, up  one command each
    ask, first_answer                 `up --ask`: a question, answered as soon as the model serves
    engine_proxy                      what an agent starts in front of a published engine
    join, join_grant, join_token      an account for a host: what it is granted, and a token that stands for that
    host_identity                     what the host keeps of it
    background                        `up start`, `up install`: without a terminal, and at login
    lan_gateway                       `up --listen`: the gateway for other machines
    *_options, host_name, state_dir   parts of their command lines
    model_directory, engine_program   what the gateway serves; which llama-server runs
What the programs do is in `supervisor`, `controller`, `apiserver` and `router`; here they are started.
"""

"""Commands of the programs that run until they are stopped: agent, controller, apiserver and up.

    agent, controller, apiserver, up  one command each
    first_answer                      `up --ask`: a question, answered as soon as the model serves
    join                              an account for a host, and a token that stands for what it is granted
    host_identity                     what the host keeps of it
    background                        `up start`, `up install`: without a terminal, and at login

What the programs do is in `programs`, `supervisor`, `controller`, `apiserver` and `router`; here they are started.
"""

"""Commands that run until they are stopped: agent, controller, apiserver and up.

    agent, controller, apiserver, up  one command each
    up_session                        `up --ask` and the progress that `up` prints
    join                              `agent join` and `join-token`: a cluster identity for a host
    host_identity                     the account, roles and kubeconfig of a host
    background                        the same programs in the background and at login

The programs themselves are in `programs`, `supervisor`, `controller`, `apiserver` and `router`.
"""

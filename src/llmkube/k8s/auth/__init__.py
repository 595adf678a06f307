"""Authentication: an authenticated transport from a kubeconfig or a service account.

kubeconfig, config  choose and read the configuration; the kubernetes package reads the service account
credentials         tokens, token files and exec plugins, renewed before they expire
transport           connections and TLS; watches have their own pool
"""

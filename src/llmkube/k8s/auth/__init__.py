"""Who we are and where the server is: kubeconfig or service account in, an authenticated transport out.

kubeconfig, config  picks the source, and says what is in it; the kubernetes package reads the service account
credentials         tokens, files and exec plug-ins, renewed in time
transport           the connection, its TLS; watches have a pool of their own
"""

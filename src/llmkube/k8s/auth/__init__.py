"""Who we are and where the server is: kubeconfig or service account in, an authenticated transport out.

load                picks the source
kubeconfig, config  what it says; the service account is read by the kubernetes package
credentials         tokens, files and exec plug-ins, renewed in time
tls, transport      the connection; watches have a pool of their own
"""

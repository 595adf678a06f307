"""Who we are and where the server is: kubeconfig or service account in, an authenticated transport out."""

"""The front door in a cluster: one address for the InferenceServices of several namespaces.

gateway         watches the objects and serves
engines         the engines of services, from EndpointSlices and status: a directory
routes          a routing config from the services and a policy
rights          the permissions of the program
"""

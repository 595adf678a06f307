"""The front door in a cluster: one address for the InferenceServices of several namespaces.

gateway         watches the objects, makes a routing config from the services and a policy, and serves
engines         the engines of services, from EndpointSlices and status: a directory
rights          the permissions of the program
"""

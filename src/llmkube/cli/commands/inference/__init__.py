"""Commands that talk to a served model: chat and port-forward.

service_route      the way to an InferenceService: a gateway, an address, a pod behind the API server
client_key         the key that is shown to a service whose clients have keys
conversation, sse  the OpenAI API, streamed
tcp_proxy          bytes between a local port and an engine
one_model          a local port for one model of a gateway
"""

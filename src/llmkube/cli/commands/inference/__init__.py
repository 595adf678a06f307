"""Commands that talk to a served model: chat and port-forward.

service_route      the way to an InferenceService: a gateway, an address, a pod behind the API server
conversation, sse  the OpenAI API, streamed
"""

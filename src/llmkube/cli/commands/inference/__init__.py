"""Commands that talk to a served model: chat and port-forward.

conversation  the way to an InferenceService (a gateway, an address, a pod); the OpenAI API, streamed
"""

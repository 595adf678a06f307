"""Commands that talk to a served model: chat and port-forward.

conversation  the route to an InferenceService (gateway, address or pod); streamed chat completions
"""

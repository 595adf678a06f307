"""Commands that talk to a served model: chat, launch and port-forward.

clients       what `llmkube launch` sets for each client; pure
conversation  the route to an InferenceService (gateway, address or pod); streamed chat completions
"""

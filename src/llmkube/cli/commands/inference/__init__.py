"""Commands that talk to a served model: chat, launch and port-forward.

clients       settings of the clients that `llmkube launch` starts; pure
conversation  the route to an InferenceService (gateway, address or pod); streamed chat completions
"""

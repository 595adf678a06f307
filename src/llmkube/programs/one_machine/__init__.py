"""`llmkube up`: the API server, the controller, the gateway and the agent in one process.

run                everything that runs, from the first port to the last signal
model_directory    what the gateway serves: the agent's services
"""

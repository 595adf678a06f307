"""Programs of Job pods, such as `llmkube fetch`. They use no Kubernetes API, only their arguments.

fetch    `llmkube fetch`
volume   adopt files of an earlier cache, read headers, remove folders; report progress and result
reach    `llmkube reach`, which connects to an address from a pod, for `llmkube doctor --from-cluster`
"""

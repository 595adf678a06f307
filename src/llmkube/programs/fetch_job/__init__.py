"""What runs inside the pod of a download Job: `llmkube fetch`. It knows no cluster, only its arguments.

fetch    the command
volume   what an earlier program has left on the volume is taken; headers are read, folders removed;
         reports: a line and an HTTP answer now and then; what it leaves for the controller
reach    whether an address answers from a pod, for `llmkube doctor --from-cluster`
"""

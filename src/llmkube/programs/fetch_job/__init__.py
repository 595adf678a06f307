"""What runs inside the pod of a download Job: `llmkube fetch`. It knows no cluster, only its arguments.

fetch                the command
adoption             what an earlier program has left on the volume
chores               what else a Job does to a volume
progress_log         a line and an HTTP answer now and then
termination_message  what it leaves for the controller
"""

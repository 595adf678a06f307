"""Random workloads of more models than memory, played under a virtual clock: `python -m tests.swap`.

workloads      the generator: models, calls, and memory that other programs take; committed before any policy
host           plays a workload with a policy
ours           the policy of llmkube/runtimes/swap.py
references     LRU, LFU and GreedyDual-Size-Frequency
lower_bound    what a policy that knows the future needs at least
playing        one workload under each of them, and a table
"""

"""`llmkube benchmark`: speed and errors of an address with OpenAI's API under a chosen load, and comparisons of runs.

command  options and text
load     requests in a closed or an open loop, and the prompts
results  figures of a run, as JSON data, and their comparison; pure
"""

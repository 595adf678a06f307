"""Models that can be deployed by a short name: where each is, what it is, and what it takes; no network is asked.

models.yaml         the list: sources, digests, and the numbers of each architecture
architectures.yaml  what a file of each architecture holds, for the estimate of its memory
entries             the list as values; names and other names
"""

"""Models that can be deployed by a short name, with source, description and memory estimate; needs no network.

models.yaml         the models: sources, digests, and the parameters of each architecture
architectures.yaml  the tensors of each architecture, to estimate memory
entries             the models as objects, by name and alias
"""

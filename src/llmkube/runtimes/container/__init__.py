"""Engines in containers: one module per runtime, each a function from a ContainerBuilder to a ContainerPlan.

builder                      the class of a runtime, and the builder that all runtimes use
container_plan               the plan of a container
gpu, images                  resources, image names
plugins                      runtimes of other packages (docs/guides/adding-a-runtime.md)
"""

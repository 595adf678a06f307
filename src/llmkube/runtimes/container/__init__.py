"""Engines in containers: one module per runtime, each a function from a ContainerBuilder to a ContainerPlan.

builder                      what all runtimes have in common
container_plan               what a pod needs to know
gpu, images                  resources, image names
plugins                      runtimes of other packages (docs/adding-a-runtime.md)
"""

"""Our kinds as attrs classes: the only source of the CRD YAML, of docs/crds.md and of what is decoded. Pure.

inferenceservice, model, modelrouter         the kinds
router_policy                                part of ModelRouter
placement, serving, podparts, meta           parts of their specs
pairing                                      what a Model and a service must agree on
definitions                                  CustomResourceDefinitions from the classes
first_api                                    objects of the first API, converted
"""

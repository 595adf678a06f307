"""Our kinds as attrs classes: the only source of the CRD YAML, of docs/reference/crds.md and of decoding. Pure.

inferenceservice, model, modelrouter, sharing the kinds
router_policy                                part of ModelRouter
placement, serving, meta                     parts of their specs
pairing                                      compatibility of runtimes, formats and hardware
definitions                                  CustomResourceDefinitions from the classes
first_api                                    conversion of objects of the first API
"""

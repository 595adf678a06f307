"""oMLX: one process that holds all of its models, found in folders and named by them.

program, options                  python -m llmkube.programs.daemon_engine.omlx.program, and its command line
model                             the model, as the keeper handles it
daemon_api, daemon_process        oMLX's HTTP API; an `omlx serve` of our own
own_folder                        the folder of such a one, and what killed fronts have left of theirs
choosing, account                 whose oMLX is used; whether a model's memory is back: pure
"""

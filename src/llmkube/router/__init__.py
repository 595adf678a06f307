"""The OpenAI-compatible address in front of all engines of a machine: picks a backend by the request's `model`.

    gateway        the handler; bytes go through as they come
    backends       where each model answers, or why it does not
    model_field    which model a JSON body names; multipart_model: which one a form with files
    model_list     what /v1/models says
    engine_proxy   the same data path for one engine that others reach: who is let in, and with which key
    origin_policy  which web pages may use it
It starts and stops nothing, and knows only the directory of models that it is given.
"""

"""The OpenAI-compatible address in front of all engines of a machine: picks a backend by the request's `model`.

    front_door     where requests come in, and what passes the bytes of one to its engine as they come
    backends       the directory: where each model answers, or why it does not, and what is said then
    model_field    which model a body names, JSON or a form with files
    model_list     what /v1/models says, and Ollama's lists
    engine_proxy   the same data path for one engine that others reach: who is let in, and with which key
    origin_policy  which web pages may use it
    turns          lets requests wait for a slot of an engine; fair_queue: who is next
The rooms beside these are what a route has that takes a list of fields, as those of ModelRouters do.
It starts and stops nothing, and knows only the directory of models that it is given.
"""

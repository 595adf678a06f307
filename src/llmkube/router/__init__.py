"""OpenAI-compatible HTTP endpoint in front of the engines of a machine: selects a backend by the request's `model`.

    front_door     entry point for requests; passes bodies through to engines as they are
    backends       directory of services: the engine of each model, or the reason why it is not ready
    model_field    the `model` of a body, JSON or a multipart form
    presets        settings and adapters of the model id that a request names
    model_list     /v1/models, and Ollama's lists
    client_models  the models that the key of a request may use, on routes without a ModelRouter
    engine_proxy   the same data path for one published engine: access by network and key
    origin_policy  web pages that may use the endpoint
    turns          requests wait for a slot of an engine; fair_queue: their order
The packages serve routes that forward listed fields only, such as those of ModelRouters.
The router starts and stops no engines; it knows only the model directory that it is given.
"""

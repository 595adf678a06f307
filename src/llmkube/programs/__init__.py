"""Programs that run until they are stopped, or in a pod; commands of `cli` start them.

one_machine                      the process of `llmkube up`
router_host                      the ModelRouters of `llmkube up`
lan_gateway                      `up --listen`: the gateway for other machines
api_server                       the embedded API server and a client for it
daemon_engine, bundled_engine    one model of a shared daemon as an engine; llama-server over xllamacpp
ollama_library                   `ollama://…` sources, pulled by an Ollama
engine_proxy, door               run in front of a published engine, or of services that are loaded on request
found_models                     the result of looking up a model
mlx_entry                        runs before mlx_lm.server, in its own Python
engine_pod                       programs next to an engine in its pod
fetch_job                        the program of the pods that fetch weights
config, options                  settings of each program, and their flags
host_settings, host_name         settings of the agent; name and address of the host
program, failures                signals, ports and nurseries of a program; exit codes, errors and the program's name
state_location, state_dir        the state directory and its locks
informer, server_side_apply      watched objects; applied manifests
"""

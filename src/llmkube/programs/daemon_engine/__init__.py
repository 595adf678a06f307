"""One model of a shared daemon as an engine of ours: a process that the agent supervises like llama-server.

ollama_program, omlx_program   what runs: a command line, whose server is used
omlx_model                     the model, as the keeper handles it
ollama_api, omlx_api           the servers' HTTP APIs
ollama_weights                 brings a model into Ollama's store
omlx_server                    an `omlx serve` of our own, and its folder
serving                        what both programs share: their options, a front until a stop
front                          what clients and the agent reach; the model's name; `/metrics` and `/slots`
keeper                         looks, decides, acts
keeping                        what to do next so that a model stays, or is gone, from what was seen: pure
model_lock                     who else uses the model, and whether a killed front has left it loaded
server                         a server that is borrowed, or ours; questions to it; what the kernel shows
processes                      which processes are a daemon's: pure

A daemon that we did not start is borrowed: it is told to load and to unload our model, and never ended.
"""

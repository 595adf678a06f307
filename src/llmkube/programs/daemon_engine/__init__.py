"""Serve one model of a shared daemon as an engine: a process that the agent supervises like llama-server.

ollama_program, omlx_program   the programs: command line, choice of the server, our own server
omlx_model                     an oMLX model, as the keeper's adapter
ollama_api, omlx_api           the servers' HTTP APIs
ollama_weights                 imports a model into Ollama's store
serving                        what both programs share: options, the front, the stop
front                          the HTTP API for clients and the agent: model name, `/metrics`, `/slots`
keeper                         samples, decides, acts
decisions                      the next act to load or unload a model, from samples: pure
model_lock                     other users of the model, and whether a killed front has left it loaded
server                         a borrowed or our own server: requests, processes
processes                      recognizes a daemon's processes: pure

A daemon that we did not start is borrowed: we load and unload our model in it, but never stop it.
"""

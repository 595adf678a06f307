"""Common parts of the HTTP benchmarks: tools, contenders, load.

tools       wrk and nginx out of Debian's packages, and a venv with aiohttp, uvicorn and httpx
nginx       nginx as the backend and as a reverse proxy
contenders  the proxies in Python
processes   all available proxies, running
sse         a backend that streams tokens, and a client that times them
wrk         requests of varying length as fast as they are answered
attacks     clients that want too much
up_program  the real `llmkube up`, with engines of our own making
"""

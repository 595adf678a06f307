"""Stream answers through a Service and say of each whether it was whole: URL SECONDS TOKENS WORKERS [KEY].

Runs inside a pod, with the standard library alone; prints JSON.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse

url, seconds, tokens, workers = urllib.parse.urlparse(sys.argv[1]), float(sys.argv[2]), *map(int, sys.argv[3:5])
headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {sys.argv[5]}"} if sys.argv[5:] else {})
body = json.dumps(
    {"prompt": "LLMKube is", "n_predict": tokens, "ignore_eos": True, "stream": True, "cache_prompt": False}
)
began = time.monotonic()
whole, broken = [], []


def ask() -> None:
    start, seen, why = time.monotonic(), 0, "the stream ended early"
    try:
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
        connection.request("POST", "/completion", body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            why = f"status {answer.status}: {answer.read(300)!r}"
        for line in answer:
            seen += line.startswith(b"data: ")
            if b'"stop":true' in line:
                why = ""
    except OSError as error:
        why = repr(error)
    except http.client.HTTPException as error:
        why = repr(error)
    lasted = time.monotonic() - start
    if why:
        broken.append({"at": round(start - began, 1), "after": round(lasted, 2), "tokens": seen, "why": why})
        time.sleep(0.05)
    else:
        whole.append(lasted)


def work() -> None:
    while time.monotonic() - began < seconds:
        ask()


threads = [threading.Thread(target=work) for _ in range(workers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdout.write(json.dumps({"whole": len(whole), "longest": round(max(whole, default=0), 2), "broken": broken}))

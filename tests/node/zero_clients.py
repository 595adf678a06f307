"""Ask a front door for models whose pods come and go, and say what became of each request: URL NAMES once|race COUNT.

Runs inside a pod, with the standard library alone; prints JSON. Like OpenAI's client, a request is repeated twice after
a broken connection or a 503 with Retry-After; it is lost if the last of these tries fails.
"""

import http.client
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request

url, names, kind, count = sys.argv[1], sys.argv[2].split(","), sys.argv[3], int(sys.argv[4])
LINGER = 11.0  # seconds from the last answer to the end of the last pod: the front door's, and the idle timeout
repeats, waits, lost = [], [], []


def ask(name: str) -> None:
    body = {"model": name, "max_tokens": 4, "messages": [{"role": "user", "content": "What is LLMKube?"}]}
    began, why = time.monotonic(), ""
    for tries in range(3):
        time.sleep(tries)
        try:
            send(json.dumps(body).encode())
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.read(300)!r}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = repr(error)
        else:
            repeats.append(tries)
            waits.append(time.monotonic() - began)
            return
    lost.append({"name": name, "after": round(time.monotonic() - began, 1), "why": why})


def send(body: bytes) -> None:
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        json.load(answer)["choices"][0]["message"]["content"]


def race(name: str) -> None:
    for _ in range(count):
        ask(name)
        time.sleep(LINGER + random.uniform(-1.0, 4.0))


threads = [
    threading.Thread(target=race if kind == "race" else ask, args=(name,))
    for name in names
    for _ in range(1 if kind == "race" else count)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
counts = {"answered": len(waits), "repeated": sum(repeats), "longest": round(max(waits, default=0), 1)}
sys.stdout.write(json.dumps(counts | {"lost": lost[:20]}))

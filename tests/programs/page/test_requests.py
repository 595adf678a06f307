"""The list of the last requests: their parts, their tokens, and the traces of clients, which stay as they are."""

import datetime

from llmkube.programs.page.requests import KEPT_REQUESTS, RecentRequests
from llmkube.programs.page.state import Rates
from llmkube.router.dispatch.watched_request import TAIL_BYTES, usage_in
from llmkube.router.traces import Span

ROOT = {"url.path": "/v1/chat/completions", "http.response.status_code": 200, "gen_ai.usage.output_tokens": 30}
ATTEMPT = {"llmkube.backend": "default/chat"}


def spans(began_at=0.0):
    return [
        Span("chat demo", 1, 0, began_at, began_at + 2, ROOT, kind="SERVER"),
        Span("hold", 3, 1, began_at, began_at + 1.5, {}),
        Span("attempt", 2, 1, began_at + 1.5, began_at + 2, ATTEMPT, kind="CLIENT"),
    ]


async def test_requests_have_the_parts_of_their_time_and_are_limited(autojump_clock):
    """Each row has start and length of its parts in milliseconds; a viewer gets those after the last one it has."""
    now = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
    recent = RecentRequests(lambda: now, Rates())
    client = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    headers, trace = recent.begin(client, is_root=False)
    assert (headers, trace.sampled) == (client, False)
    for _ in range(KEPT_REQUESTS + 1):
        recent.offer_nowait(trace, spans())
    rows = recent.after(0)
    assert len(rows) == KEPT_REQUESTS
    assert len(recent.after(KEPT_REQUESTS)) == 1
    assert rows[0]["parts"] == [["hold", 0.0, 1500.0, False], ["attempt", 1500.0, 500.0, False]]
    assert (rows[0]["ms"], rows[0]["backend"], rows[0]["answer"]) == (2000.0, "default/chat", 30)
    recent.rates.end_point()
    assert recent.rates.of("default/chat") == [30 * (KEPT_REQUESTS + 1) / 10]


def test_usage_is_found_at_the_end_of_an_answer():
    """Whole, streamed with chunks of HTTP between the events, or absent."""
    whole = b'{"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":5}}}'
    streamed = b'5b\r\ndata: {"timings":{"cache_n":5,"prompt_n":2,"predicted_n":3,"predicted_ms":9.5}}\n\n\r\n0\r\n\r\n'
    assert (usage_in(whole).prompt, usage_in(whole).cached) == (7, 5)
    assert (usage_in(streamed).completion, usage_in(streamed).decode_ms) == (3, 9.5)
    assert usage_in(b'{"choices":[]}') is None
    assert usage_in(b'"usage":{' * TAIL_BYTES) is None

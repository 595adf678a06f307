"""Headers, requests and responses as values."""

import pytest

from llmkube.base.http.heads import HeadCache, read_request
from llmkube.base.http.limits import Limits
from llmkube.base.http.message import Headers, Request, Response, encode_lines, encode_request_head, status_line

SAMPLE = Headers(
    [("Host", "x"), ("Accept", "a, B"), ("accept", "c"), ("Connection", "Keep-Alive, X-Hop"), ("X-Hop", "1")]
)


def test_lookup_ignores_case_and_keeps_order():
    """A header is found in any case, and lines of one name keep their order."""
    assert SAMPLE.get("HOST") == "x"
    assert SAMPLE.get("missing") is None
    assert SAMPLE.get("missing", "fallback") == "fallback"
    assert SAMPLE.get_all("ACCEPT") == ("a, B", "c")
    assert SAMPLE.tokens("accept") == {"a", "b", "c"}
    assert "hOsT" in SAMPLE
    assert 7 not in SAMPLE
    assert [name for name, _ in SAMPLE] == ["Host", "Accept", "accept", "Connection", "X-Hop"]
    assert len(SAMPLE) == 5


def test_copies_do_not_change_the_original():
    """`without` and `with_` return copies; the original is unchanged."""
    assert SAMPLE.without("ACCEPT", "x-hop") == Headers([("Host", "x"), ("Connection", "Keep-Alive, X-Hop")])
    assert Headers.of({"a": "1", "b": "2"}).with_("A", "3") == Headers([("b", "2"), ("A", "3")])
    assert len(SAMPLE) == 5


def test_end_to_end_drops_what_connection_names():
    """A proxy passes on neither the standard hop-by-hop headers nor those that `Connection` lists."""
    assert SAMPLE.end_to_end() == Headers([("host", "x"), ("accept", "a, B"), ("accept", "c")])
    assert len(Headers.of({"TE": "trailers", "Upgrade": "h2c", "Transfer-Encoding": "chunked"}).end_to_end()) == 0


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (Headers.of({"A": "x"}), Headers.of({"a": "x"}), True),
        (Headers.of({"A": "x"}), Headers.of({"A": "X"}), False),
        (Headers([("a", "1"), ("b", "2")]), Headers([("b", "2"), ("a", "1")]), False),
    ],
)
def test_equality_folds_names_only(one, other, equal):
    """Names compare without case; values and order matter."""
    assert (one == other) is equal
    assert (hash(one) == hash(other)) is equal


@pytest.mark.parametrize(
    ("target", "raw_path", "path", "query"),
    [
        ("/", "/", "/", ()),
        ("/a%20b?x=1&y=&x=2", "/a%20b", "/a b", (("x", "1"), ("y", ""), ("x", "2"))),
        ("/p?labelSelector=a%3Db%2Cc", "/p", "/p", (("labelSelector", "a=b,c"),)),
        ("http://host:1/p/q?r=s", "/p/q", "/p/q", (("r", "s"),)),
        ("http://host", "/", "/", ()),
        ("http://host?x=1", "/", "/", (("x", "1"),)),
        ("/at?to=http://other/", "/at", "/at", (("to", "http://other/"),)),
        ("*", "*", "*", ()),
        ("/%ff", "/%ff", "/\ufffd", ()),
    ],
)
def test_target_is_taken_apart(target, raw_path, path, query):
    """Path and query are parsed from every form of a target."""
    request = Request("GET", target)
    assert (request.raw_path, request.path, request.query) == (raw_path, path, query)


def test_param_is_the_first_of_its_name():
    """The first of two equal parameters is used, and a missing one is the default."""
    request = Request("GET", "/?x=1&x=2")
    assert (request.param("x"), request.param("y"), request.param("y", "z")) == ("1", "", "z")


def test_requests_are_values():
    """Reading a request does not change its equality."""
    one, other = Request("GET", "/?x=1"), Request("GET", "/?x=1")
    assert one.path == "/"
    assert one == other


def test_answers_name_their_type():
    """JSON and text responses name their type and keep extra headers."""
    answer = Response.json(201, {"ä": 1}, headers=Headers.of({"Location": "/x"}))
    assert (answer.headers.get("content-type"), answer.headers.get("location")) == ("application/json", "/x")
    assert Response.text(200, "ä").body == "ä".encode()


def test_heads_on_the_wire():
    """Heads are written line by line, an unknown status without a phrase."""
    assert encode_request_head("GET", "/x?y", Headers.of({"Host": "h"})) == b"GET /x?y HTTP/1.1\r\nHost: h\r\n\r\n"
    assert status_line(404) == b"HTTP/1.1 404 Not Found\r\n"
    assert status_line(599) + encode_lines(Headers.of({"A": "\xe4"})) == b"HTTP/1.1 599 \r\nA: \xe4\r\n"


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET ", "/", {}),
        ("GET", "/ x", {}),
        ("GET", "/\r\nEvil: 1", {}),
        ("GET", "/ä", {}),
        ("GET", "", {}),
        ("GET", "/", {"A": "x\r\nEvil: 1"}),
        ("GET", "/", {"A": "x\ny"}),
        ("GET", "/", {"A": "x\0"}),
        ("GET", "/", {"A\r\nB": "x"}),
        ("GET", "/", {"": "x"}),
        ("GET", "/", {"A": "\u20ac"}),
    ],
)
def test_nothing_breaks_out_of_its_line(method, target, headers):
    """A method, target or header with a line end is a bug of the caller, never sent."""
    with pytest.raises(ValueError):
        encode_request_head(method, target, Headers.of(headers))


def test_what_follows_from_header_lines_is_computed_once():
    """Heads that differ only in their length share the lines, and so the result."""
    read, calls = HeadCache(Limits(), read_request), []

    def agent(headers):
        calls.append(headers)
        return headers.get("user-agent")

    heads = [
        read.find(b"POST / HTTP/1.1\r\nHost: h\r\nUser-Agent: x\r\nContent-Length: %d\r\n\r\n" % n) for n in (1, 22)
    ]
    assert [found[0].lines.derived(agent) for found in heads] == ["x", "x"]
    assert len(calls) == 1

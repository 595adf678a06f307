import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmkube.weights.urls import BadUrlError, UserInfo, WebUrl, parse_url, resolve_location


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://host", "https://host/"),
        ("HTTPS://HOST:443/A?b=c#d", "https://host/A?b=c"),
        ("http://host.:8080/a", "http://host:8080/a"),
        ("http://host?x", "http://host/?x"),
        ("https://h/a%20b/ü", "https://h/a%20b/%C3%BC"),
        ("https://[2001:DB8:0::1]:8443/a", "https://[2001:db8::1]:8443/a"),
        ("https://192.168.0.1/a", "https://192.168.0.1/a"),
        ("https://my_host-1.example/a", "https://my_host-1.example/a"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
    ],
)
def test_a_url_has_one_form(text, normal):
    """Each way to write a URL ends in its one normal form, and reading that again changes nothing."""
    url, user_info = parse_url(text)
    assert str(url) == normal
    assert user_info is None
    assert parse_url(normal) == (url, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("https://0x7f000001/", "is a number"),
        ("https://2130706433/", "is a number"),
        ("https://127.1/", "is a number"),
        ("https://127.0.0.0x1/", "is a number"),
        ("https://0177.0.0.1/", "is a number"),
        ("https://127.0.0.01/", "is a number"),
        ("https://1.2.3.4.5/", "is a number"),
        ("https://host.0x/", "is a number"),
        ("https://①②⑦.⓪.⓪.①/", "non-ASCII"),
        ("https://\uff11\uff12\uff17.0.0.1/", "non-ASCII"),
        ("https://h/\udc80", "not valid text"),
        ("https://bücher.example/", "non-ASCII"),
        ("https://local\u2024host/", "non-ASCII"),
        ("https://%31%32%37.0.0.1/", "percent escapes"),
        ("https://host%2eexample/", "percent escapes"),
        ("https://[fe80::1%25eth0]/", "has a zone"),
        ("https://[::1/", "malformed"),
        ("https://[::1]x/", "malformed"),
        ("https://[127.0.0.1]/", "malformed"),
        ("https://::1/", "no host"),
        ("https:\\\\host/", "backslash"),
        ("https://host\\@evil/", "backslash"),
        ("https://ho\tst/", "control character"),
        ("https://host/\r\nX: y", "control character"),
        ("https://host /", "space"),
        ("https://a..b/", "not a valid name"),
        ("https://-a/", "not a valid name"),
        ("https://" + "a" * 64 + "/", "not a valid name"),
        ("https://a'b/", "not a valid name"),
        ("https://host:0/", "port"),
        ("https://host:65536/", "port"),
        ("https://host:8080x/", "port"),
        ("https://host:٣/", "port"),
        ("https:///a", "no host"),
        ("https://user@/a", "no host"),
        ("https:host", "not an http"),
        ("file:///etc/passwd", "not an http"),
        ("//host/a", "not an http"),
        ("https://h/" + "a" * 9000, "longer"),
    ],
)
def test_a_host_that_two_readers_may_read_differently_is_refused(text, says):
    """No odd form of an address or a name comes through, whatever a resolver would make of it."""
    with pytest.raises(BadUrlError, match=says):
        parse_url(text)


def test_user_and_password_are_kept_apart():
    """What stands before the last @ of the authority is no host, and is in no text of the URL."""
    url, secret = parse_url("https://me%40x:s3cr%3At@host/a@b?c@d")
    assert (str(url), secret) == ("https://host/a@b?c@d", UserInfo("me@x", "s3cr:t"))
    assert "s3cr" not in repr(secret) + repr(url) + url.shown
    assert parse_url("https://8.8.8.8@127.0.0.1/")[0].host == "127.0.0.1"


def test_a_query_stays_out_of_messages():
    """What may be a signature is not shown."""
    assert parse_url("https://h:8443/a.gguf?X-Amz-Signature=s")[0].shown == "https://h:8443/a.gguf"


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/b?c", "https://h/b?c"),
        ("b", "https://h/d/b"),
        ("../b", "https://h/b"),
        ("//other/b", "https://other/b"),
        ("http://other:80/b", "http://other/b"),
        ("?q", "https://h/d/a?q"),
        ("https://u:p@other/b#f", "https://other/b"),
    ],
)
def test_a_redirect_is_followed_from_where_it_stands(location, leads_to):
    """Relative and absolute redirects lead to the URL that RFC 3986 says."""
    assert str(resolve_location(WebUrl("https", "h", 443, "/d/a?x"), location)) == leads_to


@pytest.mark.parametrize(
    "location",
    ["file:///etc/passwd", "ftp://h/a", "http://[::1", "https://127.1/", "/\x00", "\\\\evil"],
)
def test_a_redirect_to_nowhere_is_refused(location):
    """A redirect is read as strictly as a source."""
    with pytest.raises(BadUrlError):
        resolve_location(WebUrl("https", "h", 443, "/"), location)


@given(st.text())
def test_no_text_breaks_the_reader(text):
    """Any host text gives a URL in printable ASCII, or a BadUrlError."""
    try:
        url, _ = parse_url(f"https://{text}")
    except BadUrlError:
        return
    assert str(url).isascii()
    assert str(url).isprintable()
    assert parse_url(str(url))[0] == url

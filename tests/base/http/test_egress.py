"""The proxy of each server: settings, variables, exceptions, and errors without passwords."""

import pytest

from llmkube.base.errors import UserError
from llmkube.base.http.egress import Egress, redacted
from llmkube.base.http.errors import ConnectError

PROXY = "http://proxy:3128"


def proxy_of(url, environ, *rules):
    scheme, _, host = url.partition("://")
    name, _, port = host.rpartition(":")
    return Egress.of(rules, None, environ).proxy_of(scheme, name, int(port))


@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://a.example:443", {}, ""),
        ("https://a.example:443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example:443", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other"}, PROXY),
        ("https://a.example:443", {"HTTP_PROXY": PROXY}, ""),
        ("http://a.example:80", {"HTTP_PROXY": "proxy:3128"}, PROXY),
        ("http://a.example:80", {"http_proxy": PROXY, "ALL_PROXY": "http://other"}, PROXY),
        ("http://a.example:80", {"ALL_PROXY": PROXY}, PROXY),
        ("https://a.example:443", {"all_proxy": PROXY, "HTTPS_PROXY": ""}, PROXY),
        ("https://a.example:443", {"HTTPS_PROXY": PROXY, "ALL_PROXY": "socks5://s:1"}, PROXY),
        ("http://localhost:8000", {"ALL_PROXY": PROXY}, ""),
        ("http://x.localhost:8000", {"ALL_PROXY": PROXY}, ""),
        ("http://127.0.0.9:8000", {"ALL_PROXY": PROXY}, ""),
        ("http://::1:8000", {"ALL_PROXY": PROXY}, ""),
        ("http://::ffff:127.0.0.1:8000", {"ALL_PROXY": PROXY}, ""),
        ("http://0.0.0.0:8000", {"ALL_PROXY": PROXY}, ""),
        ("http://10.0.0.1:8000", {"ALL_PROXY": PROXY}, PROXY),
    ],
)
def test_the_variable_of_the_scheme_comes_before_that_of_all(url, environ, proxy):
    """Lower case takes precedence; this machine is reached directly."""
    assert proxy_of(url, environ) == proxy


@pytest.mark.parametrize(
    ("entry", "direct", "proxied"),
    [
        ("*", ["a.example:443", "10.1.1.1:1"], []),
        ("a.example", ["a.example:443", "x.A.example:443", "a.example.:443"], ["ba.example:443", "example:443"]),
        (".a.example", ["a.example:443", "x.a.example:443"], ["ba.example:443"]),
        ("*.a.example", ["x.a.example:443"], ["ba.example:443"]),
        ("a.example:8443", ["a.example:8443"], ["a.example:443"]),
        ("10.1.1.1", ["10.1.1.1:443", "::ffff:10.1.1.1:443"], ["10.1.1.2:443", "x10.1.1.1:443"]),
        ("10.0.0.0/8", ["10.9.9.9:443"], ["11.0.0.1:443"]),
        ("10.1.1.1:99", ["10.1.1.1:99"], ["10.1.1.1:443"]),
        ("[2001:db8::1]:99", ["2001:db8::1:99"], ["2001:db8::1:98"]),
        ("2001:db8::/32", ["2001:db8::5:443"], ["2001:db9::5:443"]),
        ("b.example, a.example", ["a.example:443", "b.example:443"], ["c.example:443"]),
        ("b.example a.example,", ["a.example:443"], []),
    ],
)
def test_no_proxy(entry, direct, proxied):
    """Names with their subdomains, addresses, networks, each with a port if it has one."""
    for variable in ("NO_PROXY", "no_proxy"):
        environ = {"ALL_PROXY": PROXY, variable: entry}
        assert [proxy_of(f"https://{each}", environ) for each in direct] == [""] * len(direct)
        assert [proxy_of(f"https://{each}", environ) for each in proxied] == [PROXY] * len(proxied)


def test_a_setting_overrides_the_variables_for_its_targets():
    """The first rule that matches decides; a star leaves out this machine, its name does not."""
    rules = ("a.example=direct", "10.0.0.0/8=http://ten", "localhost=http://own", "*=http://rest")
    environ = {"ALL_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8,b.example"}
    expected = {"a.example:1": "", "10.1.1.1:1": "http://ten", "b.example:1": "http://rest", "127.0.0.1:1": ""}
    expected["localhost:1"] = "http://own"
    assert {url: proxy_of(f"https://{url}", environ, *rules) for url in expected} == expected
    assert proxy_of("https://c.example:1", environ, "a.example=direct") == PROXY


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("HTTPS_PROXY", "socks5://me:secret@s:1080", "HTTPS_PROXY: socks5://s:1080 is not a proxy"),
        ("ALL_PROXY", "http://me:secret@", "write http://HOST:PORT"),
        ("https_proxy", "http://me:se/secret@p:1", "https_proxy: http://p:1 is not"),
        ("HTTPS_PROXY", "me:secret@p:99999", "HTTPS_PROXY: http://p:99999 is not"),
    ],
)
def test_a_variable_that_cannot_be_used_fails_only_what_needs_it(name, text, words):
    """The error names the variable, its value without the password, and the fix; other schemes are not affected."""
    egress = Egress.of((), None, {name: text, "HTTP_PROXY": PROXY, "NO_PROXY": "d.example"})
    with pytest.raises(ConnectError, match=words) as refused:
        egress.proxy_of("https", "a.example", 443)
    assert "secret" not in str(refused.value) + repr(egress)
    assert egress.proxy_of("http", "a.example", 80) == PROXY
    assert egress.proxy_of("https", "d.example", 443) == egress.proxy_of("https", "localhost", 443) == ""


def test_an_entry_of_no_proxy_that_cannot_be_used_is_no_name():
    with pytest.raises(ConnectError, match=r"NO_PROXY: '10.0.0.0/33' is not a name, an address or a network"):
        proxy_of("https://a.example:1", {"ALL_PROXY": PROXY, "NO_PROXY": "10.0.0.0/33"})
    assert proxy_of("https://a.example:1", {"NO_PROXY": "10.0.0.0/33"}) == ""


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("http://me:secret@p:1", "http://p:1 is not TARGET=URL; write \\*=http://HOST:PORT"),
        ("http://me:se=cret@p:1", "http://p:1 is not TARGET=URL"),
        ("me:se=cret@p:1", "p:1 is not TARGET=URL"),
        ("a.example", "a.example is not TARGET=URL"),
        ("a.example=p:1", "is not TARGET=URL"),
        ("a b=direct", "'a b' is not a name"),
        ("a.example=socks5://me:secret@p:1", "socks5://p:1 is not a proxy"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(rule, words):
    with pytest.raises(UserError, match=f"--proxy: .*{words}") as refused:
        Egress.of((rule,), None, {})
    assert "cret" not in str(refused.value)


def test_a_url_is_shown_without_its_password():
    assert redacted("http://me:p@ss@proxy:1") == redacted(PROXY.replace("3128", "1")) == "http://proxy:1"

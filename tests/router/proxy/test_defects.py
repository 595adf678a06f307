"""What the Go implementation and other gateways get wrong while they ask backends: by the number of its list."""

from router.proxy.router_lab import ASKED, answer, cloud, config_of, error, local, open_lab, piece, stream


async def test_defect_5_a_client_s_secrets_do_not_reach_a_provider(autojump_clock):
    """Cookies, keys and headers of its own stay here."""
    async with open_lab(config_of(cloud("a")), a=answer()) as lab:
        secrets = {"cookie": "c=SECRET", "x-api-key": "SECRET", "authorization": "Bearer SECRET", "x-mine": "SECRET"}
        assert (await lab.ask(headers=secrets)).status == 200
        assert "SECRET" not in lab.players["a"].heads[0]


async def test_defect_6_a_redirect_is_not_followed(autojump_clock):
    """Where a backend points to hears nothing of the request."""
    moved = answer(307, lines=(b"Location: http://b/v1/chat/completions",))
    async with open_lab(config_of(local("a")), a=moved, b=answer()) as lab:
        assert (await lab.ask()).status != 200
        assert lab.players["b"].asked == []


async def test_defect_12_a_backend_that_is_full_is_passed_over(autojump_clock):
    """429 of one is not the client's, while another can answer."""
    async with open_lab(config_of(local("a"), local("b")), a=error(429), b=answer()) as lab:
        assert (await lab.ask(ASKED)).status == 200
        assert len(lab.players["b"].asked) == 1


async def test_failure_10_a_stream_that_breaks_off_is_no_success(autojump_clock):
    """The client reads an error, and not [DONE]."""
    async with open_lab(config_of(local("a")), a=stream(piece("one"), end=b"")[:-1]) as lab:
        _, said, _ = await lab.read()
        assert b'"error"' in said
        assert b"[DONE]" not in said

"""`llmkube router -f` with the keys of an issuer in a file, and the official client with a token as its API key."""

import json
import time

import pytest
import trio

from e2e.router_lab import open_provider, open_router, run_clients
from e2e.test_router import CANARY
from router.auth.token_lab import jwks, token

pytestmark = pytest.mark.e2e

ROUTER = """
apiVersion: inference.llmkube.dev/v1alpha1
kind: ModelRouter
metadata: {name: with-tokens}
spec:
  backends:
    - name: cloud
      external: {provider: openai, model: gpt-5, url: "URL", credentialsSecretRef: {name: key}}
  rules:
    - name: all
      route: {backends: [cloud]}
  policy:
    auth:
      jwt:
        provider: corp
        issuer: https://id.example
        audiences: [llm]
        teamClaim: team
        jwksSecretRef: {name: idp, key: jwks.json}
      allowlists: [{team: red, models: [cloud]}]
    auditLog: {sink: file, filePath: AUDIT}
"""
CLIENT = """
import json, sys
import openai

def outcome(token, model="cloud"):
    client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=token, max_retries=0)
    try:
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    except openai.APIStatusError as error:
        return [error.status_code, error.code]
    pieces = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}], stream=True)
    return [answer.choices[0].message.content, "".join(each.choices[0].delta.content or "" for each in pieces)]

tokens = json.load(sys.stdin)
print(json.dumps({name: outcome(*asked) for name, asked in tokens.items()}))
"""


def fresh(name="rsa-1", algorithm="RS256", **claims):
    return token(name, algorithm, **{"exp": time.time() + 600} | claims)


@pytest.mark.ci
async def test_the_official_client_shows_a_token(tmp_path, client_packages):
    """Access follows its team, neither the provider nor a log gets the token, and keys may be rotated."""
    asked, audit = [], tmp_path / "audit.log"
    keys = {"backends/cloud": CANARY, "tokens/jwks.json": jwks("rsa-1").decode()}
    tokens = {
        "red": [fresh(sub="subject-canary")],
        "another model": [fresh(), "gpt-9"],
        "another team": [fresh(team="blue")],
        "expired": [fresh(exp=time.time() - 60)],
        "another key": [fresh("rsa-2")],
        "a key that comes": [fresh("p256-1", "ES256")],
        "no token": ["sk-1234"],
    }
    async with trio.open_nursery() as nursery:
        provider = await open_provider(nursery, asked)
        manifest = ROUTER.replace("URL", f"http://127.0.0.1:{provider}/v1").replace("AUDIT", str(audit))
        async with open_router(tmp_path, manifest, keys=keys) as router:

            async def outcomes(shown):
                words = ("-c", CLIENT, router.url)
                return await run_clients(tmp_path, client_packages, *words, stdin=json.dumps(shown).encode())

            assert await outcomes(tokens) == {
                "red": ["from the cloud"] * 2,
                "another model": [403, "model_not_allowed"],
                "another team": [403, "model_not_allowed"],
                "expired": [401, "token_expired"],
                "another key": [401, "invalid_token"],
                "a key that comes": [401, "invalid_token"],
                "no token": [401, "invalid_api_key"],
            }
            new = tmp_path / "keys" / "tokens" / "new"
            new.write_bytes(jwks("p256-1"))
            new.rename(new.with_name("jwks.json"))
            await router.program.wait_for("err", r'"keys":\["p256-1"\]')
            found = await outcomes({name: tokens[name] for name in ("red", "a key that comes")})
            assert found == {"red": [401, "invalid_token"], "a key that comes": ["from the cloud"] * 2}
            log = router.program.out + router.program.err
        nursery.cancel_scope.cancel()
    seen = audit.read_text() + log + repr([(list(lines), body) for lines, body in asked])
    shown = [part for several in tokens.values() for part in several[0].split(".")[1:]] + ["subject-canary"]
    assert [each for each in shown if each in seen] == []
    lines = [each for each in map(json.loads, audit.read_text().splitlines()) if each["kind"] == "decision"]
    assert {each["team"] for each in lines} == {"red", "blue"}
    assert len(asked) == 4

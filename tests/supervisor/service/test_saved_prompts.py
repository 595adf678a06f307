"""Saved prompts with the real engine: what each kind of model keeps, and that no restore changes an answer."""

import json
import os
import random
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
import trio

from e2e.router_lab import serve
from free_ports import free_port
from lengths import RESTORES
from llmkube.base.http.client import open_http_client
from llmkube.base.http.message import Headers, Response
from llmkube.k8s.resource import Key
from llmkube.runtimes.plan import EngineInfo, LaunchPlan, Placeholder
from llmkube.supervisor.engine import health, prompt_files
from llmkube.supervisor.service import saved_prompts
from llmkube.supervisor.service.loading import RunningEngine
from llmkube.supervisor.service.saved_prompts import (
    IDLE_SECONDS,
    EnginePrompts,
    PromptStore,
    RestoreError,
    digest_of,
    unsaved_reason,
)
from llmkube.supervisor.values.desired import Launch
from llmkube.supervisor.values.journal import EngineRecord
from llmkube.supervisor.values.liveness import Limits
from llmkube.weights.store.blobs import WeightsFile
from tiny_models import KINDS

KEY, LIMIT, NOW = Key("default", "chat"), 1 << 30, "2026-11-29T00:00:00Z"
PROMPT = [random.Random(5).randrange(7, 300) for _ in range(800)]
API_KEY = "secret"


def launch_of(model, *flags):
    argv = (Placeholder.PROGRAM, "--model", Placeholder.MODEL, *flags)
    plan = LaunchPlan(argv, (), "llamacpp", "chat", weights_identity=str(model))
    return Launch(plan, WeightsFile(Path(model), 1000, None, str(model)))


@attrs.frozen
class Engine:
    """A running engine with its saved prompts."""

    prompts: EnginePrompts
    http: object
    url: str

    async def complete(self, prompt, **options):
        """Return `cache_n`, the tokens of the answer and the probabilities of the first one."""
        body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, "return_tokens": True, "n_probs": 5} | options
        headers = Headers.of({"Authorization": f"Bearer {API_KEY}"})
        answer = await self.http.request(
            "POST", f"{self.url}/completion", headers=headers, body=json.dumps(body).encode()
        )
        assert answer.status == 200, answer.body
        found = json.loads(answer.body)
        first = (found.get("completion_probabilities") or [{}])[0].get("top_logprobs", ())
        return found["timings"]["cache_n"], found["tokens"], {each["id"]: each["logprob"] for each in first}


@asynccontextmanager
async def open_engine(folder, model, *flags, build="b1", owner="uid-1", known=("--slot-save-path",)):
    """Run the bundled engine; its slots are saved below `folder`, if it knows the flag for that."""
    store, launch, port = PromptStore(folder / "prompts", LIMIT), launch_of(model, *flags), free_port()
    info = EngineInfo("", build, frozenset(known))
    keys = folder / "keys"
    keys.write_text(API_KEY)
    saving = await store.flags_for(KEY, launch.plan, info, API_KEY)
    command = [sys.executable, "-m", "llmkube.programs.bundled_engine.llama_server", "--model", str(model)]
    command += ["--port", str(port), "--api-key-file", str(keys), "--threads", "1", *flags, *saving]
    record, log = EngineRecord("", "127.0.0.1", port, api_key=API_KEY, build=build), folder / "engine.log"
    async with open_http_client() as http:
        with log.open("wb") as output:
            process = await trio.lowlevel.open_process(command, stdout=output, stderr=output)
        try:
            with trio.fail_after(60):
                await health.wait_ready(http, f"http://127.0.0.1:{port}/health")
            running = RunningEngine(None, record, launch, http, Limits())
            prompts = EnginePrompts(store, running, KEY, owner)
            yield Engine(prompts, http, f"http://127.0.0.1:{port}")
        finally:
            process.kill()
            with trio.move_on_after(10, shield=True):
                await process.wait()


def same(found, expected):
    """Whether two answers are the same but for rounding: a batch of another size is rounded differently.

    The engine reports no probabilities for a token without text.
    """
    (_, tokens, probable), (_, expected_tokens, expected_probable) = found, expected
    common = probable.keys() & expected_probable.keys()
    if not probable and not expected_probable:
        return tokens == expected_tokens
    return len(common) >= 3 and all(abs(probable[each] - expected_probable[each]) < 0.05 for each in common)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("full attention", 0.99),
        ("latent attention", 0.99),
        ("recurrent", 0.99),
        ("hybrid", 0.99),
        ("sliding window", 0.6),
    ],
)
async def test_each_kind_keeps_a_conversation(tmp_path, kind, least):
    """The next turn after a restore computes only what is new, and answers what the engine would have answered.

    With a sliding window, what follows the last checkpoint is computed once, by the verification.
    """
    model = tmp_path / "model.gguf"
    KINDS[kind](model)
    async with open_engine(tmp_path, model, "--ctx-size", "4096") as engine:
        _, answer, _ = await engine.complete(PROMPT, n_predict=500, id_slot=0)
        conversation = PROMPT + answer
        await engine.prompts.save(NOW)
        warm = await engine.complete([*conversation, 9, 10, 11, 12], n_predict=1)
    async with open_engine(tmp_path, model, "--ctx-size", "4096") as engine:
        text = await engine.prompts.restore()
        cached, tokens = (int(text.split()[at]) for at in (0, 2))
        assert cached >= least * tokens, text
        found = await engine.complete([*conversation, 9, 10, 11, 12], n_predict=1)
        assert found[0] >= 0.99 * len(conversation), (text, found)
        assert same(found, warm), (found, warm)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("known", "report"),
    [(("--slot-save-path",), "prompts are saved"), ((), "prompts are not saved: the engine has no folder for them")],
)
async def test_the_engine_reports_whether_it_can_save(tmp_path, known, report):
    """The next agent does not know with which flags an engine was started."""
    KINDS["full attention"](tmp_path / "model.gguf")
    async with open_engine(tmp_path, tmp_path / "model.gguf", known=known) as engine:
        assert await engine.prompts.report() == report
        await engine.complete(PROMPT[:100], n_predict=1)
        assert bool(await engine.prompts.save(NOW)) == bool(known)


@pytest.mark.ci
async def test_no_restore_changes_an_answer(tmp_path):
    """Over drawn models, flags, builds and damage, an engine answers after the restore what it answers without one."""
    rng, restored, cold = random.Random(37), 0, {}
    for kind, write in KINDS.items():
        write(tmp_path / f"{kind}.gguf")

    def draw():
        flags = ["--ctx-size", rng.choice(("4096", "8192")), "--parallel", rng.choice(("1", "2"))]
        flags += rng.choice(((), ("--rope-freq-base", "20000"), ("-ctk", "f32", "-ctv", "f32"), ("--temp", "0.3")))
        return tuple(flags), rng.choice(("b1", "b1", "b2"))

    for number in range(RESTORES):
        folder = tmp_path / str(number)
        folder.mkdir()
        (flags, build), other = draw(), draw()
        asked, asked_build = rng.choice(((flags, build), (flags, build), other))
        kinds = rng.choices(sorted(KINDS), k=2)
        model, asked_model = (tmp_path / f"{kind}.gguf" for kind in (kinds[0], rng.choice((kinds[0], *kinds))))
        async with open_engine(folder, model, *flags, build=build) as engine:
            await engine.complete(PROMPT, n_predict=20, id_slot=0)
            await engine.prompts.save(NOW)
        ((path, _),) = prompt_files.read_all(folder / "prompts")
        if damage := rng.choice(("", "", "short", "flipped")):
            content = bytearray(path.read_bytes())
            at = rng.randrange(len(content))
            content[at] ^= 1 << rng.randrange(8)
            path.write_bytes(content[:at] if damage == "short" else content)
        async with open_engine(folder, asked_model, *asked, build=asked_build) as engine:
            text, drawn = await engine.prompts.restore(), (asked_model.stem, asked)
            is_restored = text.endswith("restored")
            digests = digest_of(launch_of(model, *flags), build), digest_of(launch_of(asked_model, *asked), asked_build)
            assert is_restored == (not damage and digests[0] == digests[1]), (number, drawn, text)
            restored += is_restored
            found = await engine.complete([*PROMPT, 9, 10], n_predict=1)
            assert bool(found[0]) == is_restored, (number, text, found)
            if drawn not in cold:
                cold[drawn] = await engine.complete([*PROMPT, 9, 10], n_predict=1, cache_prompt=False)
            assert same(found, cold[drawn]), (number, model, flags, drawn, damage)
    assert restored


def test_flags_that_change_what_is_computed_change_the_digest():
    """Sampling and threads do not; context, cache types, rope, template, weights and build do."""
    base = digest_of(launch_of("m", "--ctx-size", "4096"), "b1")
    for flags in (("--temp", "0.5"), ("--threads", "8"), ("--top-k", "1", "--seed", "-1"), ("--alias", "x")):
        assert digest_of(launch_of("m", "--ctx-size", "4096", *flags), "b1") == base, flags
    others = [("--ctx-size", "8192"), ("--ctx-size", "4096", "-ctk", "q8_0"), ("--ctx-size", "4096", "--jinja"),
              ("--ctx-size", "4096", "--chat-template", "x"), ("--ctx-size", "4096", "--rope-scale", "2")]  # fmt: skip
    assert base not in {digest_of(launch_of("m", *flags), "b1") for flags in others}
    assert base not in {digest_of(launch_of("n", "--ctx-size", "4096"), "b1"), digest_of(launch_of("m"), "b2")}


@pytest.mark.parametrize("flags", [("--no-slots",), ("--lora", "a"), ("-md", "d"), ("--spec-type", "ngram-mod"),
                                   ("--embedding",), ("--reranking",)])  # fmt: skip
async def test_engines_whose_slots_must_not_be_saved_get_no_folder(tmp_path, flags):
    """Clients with keys could restore each other's slots; adapters and drafts are not part of a slot."""
    store, info = PromptStore(tmp_path / "prompts", LIMIT), EngineInfo("", "b1", frozenset({"--slot-save-path"}))
    assert unsaved_reason(launch_of("m", *flags).plan, API_KEY)
    assert await store.flags_for(KEY, launch_of("m", *flags).plan, info, API_KEY) == ()
    assert await store.flags_for(KEY, launch_of("m").plan, info, "") == ()
    assert await PromptStore(tmp_path, 0).flags_for(KEY, launch_of("m").plan, info, API_KEY) == ()
    folder = f"{tmp_path}/prompts/default/chat/"
    assert await store.flags_for(KEY, launch_of("m").plan, info, API_KEY) == ("--slot-save-path", folder)


@pytest.mark.parametrize(("cache_n", "status", "marked"), [(0, 200, True), (40, 400, False)])
async def test_a_failed_restore_is_an_error_and_is_not_repeated(tmp_path, cache_n, status, marked):
    """A restore without effect is reported from then on; what the engine refuses is only removed."""
    store, asked = PromptStore(tmp_path, LIMIT), []
    folder, digest = store.folder(KEY), digest_of(launch_of("m"), "b1")
    folder.mkdir(parents=True)
    prompt = prompt_files.SavedPrompt(digest, "uid-1", 0, 40, 0, "", 1.0)
    (folder / prompt.new_name).write_bytes(b"\0" * 8 + (40).to_bytes(4, "little") + b"\7\0\0\0" * 40)
    prompt_files.add(store.root, folder, prompt, LIMIT)

    async def engine(exchange):
        asked.append(exchange.head.path)
        restoring = "slots" in exchange.head.path
        body = [] if exchange.head.path == "/slots" else {} if restoring else {"timings": {"cache_n": cache_n}}
        await exchange.respond(Response.json(status if restoring else 200, body))

    async with trio.open_nursery() as nursery, open_http_client() as http:
        record = EngineRecord("", "127.0.0.1", await serve(nursery, engine), api_key=API_KEY, build="b1")
        running = RunningEngine(None, record, launch_of("m"), http, Limits())
        prompts = EnginePrompts(store, running, KEY, "uid-1")
        with pytest.raises(RestoreError):
            await prompts.restore()
        seen = asked.count("/completion")
        text = await prompts.restore()
        assert asked.count("/completion") == seen
        assert text == ("prompts are not saved: this engine computes restored ones of this model again"
                        if marked else "prompts are saved")  # fmt: skip
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("status", "body"), [(404, {"error": {"message": "File Not Found"}}), (200, {}), (200, [1])])
async def test_an_engine_without_a_list_of_slots_saves_nothing(tmp_path, status, body):
    """It continues to serve."""

    async def request(*_, **__):
        await trio.lowlevel.checkpoint()
        return Response.json(status, body)

    record = EngineRecord("", "127.0.0.1", 1, api_key=API_KEY, build="b1")
    running = RunningEngine(None, record, launch_of("m"), SimpleNamespace(request=request), Limits())
    assert await EnginePrompts(PromptStore(tmp_path, LIMIT), running, KEY, "uid-1").save(NOW) is None


class Slot:
    """The only slot of an engine in memory, and the times at which it was saved."""

    def __init__(self, folder):
        self.folder, self.request, self.size, self.saved_at, self.broken = folder, 1, 200, [], False

    async def request_of(self, _method, url, *, headers, body):
        await trio.lowlevel.checkpoint()
        if "action" not in url:
            slot = {"id": 0, "id_task": self.request, "is_processing": False, "n_prompt_tokens": 40, "n_ctx": 4096}
            return Response.json(200, [slot])
        self.saved_at.append(trio.current_time())
        if self.broken:
            await trio.sleep_forever()
        path = self.folder / json.loads(body)["filename"]
        path.write_bytes(b"\0" * 8 + (40).to_bytes(4, "little") + b"\7\0\0\0" * 40)
        os.truncate(path, self.size)
        return Response.json(200, {"n_saved": 40})


class StoreWithoutThreads(PromptStore):
    """A store whose files are written at once: the clock of the test does not wait for threads."""

    async def in_thread(self, function, *args):
        await trio.lowlevel.checkpoint()
        return function(*args)


async def test_an_engine_that_serves_is_saved_when_it_becomes_idle(tmp_path, autojump_clock, nursery, monkeypatch):
    """30 s after each use, not again without one, never while memory is short, nor beyond the average of writes."""
    monkeypatch.setattr(saved_prompts, "WRITE_BURST_BYTES", 2000.0)
    monkeypatch.setattr(saved_prompts, "WRITE_BYTES_PER_SECOND", 2.0)
    store = StoreWithoutThreads(tmp_path, LIMIT)
    slot = Slot(store.folder(KEY))
    record = EngineRecord("", "127.0.0.1", 1, api_key=API_KEY, build="b1")
    running = RunningEngine(None, record, launch_of("m"), SimpleNamespace(request=slot.request_of), Limits())
    prompts = EnginePrompts(store, running, KEY, "uid-1")
    start = used_at = trio.current_time()
    is_short = False

    async def use(at, size=200):
        nonlocal used_at
        await trio.sleep_until(start + at)
        used_at, slot.request, slot.size = trio.current_time(), slot.request + 1, size

    nursery.start_soon(prompts.keep_saved, lambda: used_at, lambda: not is_short, lambda: prompts.save(NOW))
    await use(25)
    await use(50)
    await trio.sleep_until(start + 1000)
    assert slot.saved_at == [start + 50 + IDLE_SECONDS]
    is_short = True
    await use(1000)
    await trio.sleep_until(start + 1200)
    assert len(slot.saved_at) == 1
    is_short = False
    await use(2000, size=4000)
    await use(2100)
    await trio.sleep_until(start + 5000)
    assert slot.saved_at[-2] == start + 2000 + IDLE_SECONDS
    assert slot.saved_at[-1] == pytest.approx(slot.saved_at[-2] + 1000)
    seen, slot.broken = len(slot.saved_at), True
    await use(6000)
    await use(7000)
    await trio.sleep_until(start + 8000)
    assert len(slot.saved_at) == seen + 1
    assert len(list(prompt_files.read_all(tmp_path))) == 1


@pytest.mark.parametrize(
    ("flags", "record", "limit", "report"),
    [
        ((), {}, LIMIT, "prompts are saved"),
        ((), {"status": 501}, LIMIT, "prompts are not saved: the engine has no folder for them"),
        ((), {"api_key": ""}, LIMIT, "prompts are not saved: every client could restore and erase them"),
        (("--lora", "a"), {}, LIMIT, "prompts are not saved: it has adapters"),
        ((), {}, 0, ""),
    ],
)
async def test_status_shows_whether_prompts_are_saved(tmp_path, flags, record, limit, report):
    """Also if there is nothing to restore."""
    status = record.pop("status", 400)

    async def request(*_, **__):
        await trio.lowlevel.checkpoint()
        return Response.json(status, {})

    found = EngineRecord("", "127.0.0.1", 1, **{"api_key": API_KEY, "build": "b1", **record})
    running = RunningEngine(None, found, launch_of("m", *flags), SimpleNamespace(request=request), Limits())
    prompts = EnginePrompts(PromptStore(tmp_path, limit), running, KEY, "uid-1")
    assert (await prompts.restore()).startswith(report)
    assert bool(await prompts.report()) == bool(report)

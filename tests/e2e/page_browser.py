"""Drive the page in Chromium; print what was found as JSON. Runs without LLMKube: `page_browser.py` JSON of `Task`."""

import base64
import json
import re
import stat
import sys
import tempfile
from pathlib import Path

import axe_playwright_python
from playwright.sync_api import sync_playwright

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text("utf-8")
OVERFLOW = """[...document.querySelectorAll('body *')].filter(each => {
  const box = each.getBoundingClientRect()
  return box.width && box.right > innerWidth + 1 && !each.closest('pre, .skip, svg')
}).map(each => each.outerHTML.slice(0, 200))"""
OVERLAP = """(() => {
  const names = 'button, select, textarea, input, nav a, dd, h2, h3, .legend span, .legend a'
  const parts = [...document.querySelectorAll(names)]
    .filter(each => each.checkVisibility()).map(each => [each, each.getBoundingClientRect()])
  const found = []
  for (const [a, p] of parts) for (const [b, q] of parts)
    if (a !== b && !a.contains(b) && !b.contains(a) && p.left < q.right - 1 && q.left < p.right - 1
        && p.top < q.bottom - 1 && q.top < p.bottom - 1) found.push(`${a.outerHTML} ${b.outerHTML}`.slice(0, 300))
  return found
})()"""
TO_WEBP = """async png => {
  const image = new Image(), canvas = document.createElement('canvas')
  image.src = `data:image/png;base64,${png}`
  await image.decode();
  [canvas.width, canvas.height] = [image.width, image.height]
  canvas.getContext('2d').drawImage(image, 0, 0)
  return canvas.toDataURL('image/webp', 0.85).split(',')[1]
}"""
"""Returns a picture as WebP: a third of its size as PNG."""
PICTURE_WIDTHS = (390, 1280)
VIEWS = {
    "chat": "option",
    "memory": ".legend",
    "models": "article h3",
    "requests": ".request",
    "logs": ".log:not(:empty)",
}
"""The views, and a part of each that it has once it shows the state."""


class Patient:
    """A browser whose pages wait as long as a slow machine needs, and get a client's key if they ask for one."""

    def __init__(self, browser, key):
        self.browser = browser
        self.key = key

    def new_page(self, **options):
        page = self.browser.new_page(**options)
        page.set_default_timeout(300_000)
        page.on("dialog", lambda each: each.accept(self.key) if self.key else each.dismiss())
        return page


def address_of(task):
    """Return the address of the page, with the token of its owner if the task has one."""
    return f"{task['url']}/#token={task['token']}" if task["token"] else task["url"]


def views_of(task):
    """Return the views of the page, each with a part of it."""
    return {view: VIEWS[view] for view in task.get("views", VIEWS)}


def wait_live(page):
    """Wait until the page shows the state of the server."""
    page.wait_for_selector("#connection:has-text('Live: ')")


def ask(page, question):
    """Send a message in the chat and return the answer as shown, once it is complete."""
    page.fill("textarea", question)
    page.keyboard.press("Enter")
    page.wait_for_selector(".turn:last-child .soft, .turn.error")
    return page.inner_text(".turn:last-child")


def see_views(browser, task, found):
    """Open each view in both schemes and at several widths: nothing overflows or overlaps, axe finds nothing."""
    for scheme, widths in (("light", (360, 390, 1280, 3840)), ("dark", (390, 1280))):
        page = browser.new_page(color_scheme=scheme)
        page.on("console", lambda line: found["console"].append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: found["console"].append(str(error)))
        page.on("request", lambda one: found["urls"].append(one.url))
        page.goto(address_of(task))
        wait_live(page)
        page.evaluate(AXE)
        for view, part in views_of(task).items():
            page.click(f"nav a[href='#{view}']")
            page.wait_for_selector(part, state="attached")
            if view == "chat":
                ask(page, task["question"])
            if view == "models" and task["token"]:
                page.wait_for_selector(".tag.failing")
                page.click("summary:has-text('Deploy a model')")
                page.fill("[name=service]", "demo")
                page.fill("[name=source]", "builtin://demo")
                page.keyboard.press("Enter")
                page.wait_for_selector("form .ready")
                if task["shots"]:
                    page.wait_for_selector(".plot")
            for width in widths:
                page.set_viewport_size({"width": width, "height": 800})
                problems = [*page.evaluate(OVERFLOW), *page.evaluate(OVERLAP)]
                if width == widths[-2]:
                    report = page.evaluate("axe.run()")
                    problems += [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in report["violations"]]
                if problems:
                    found["problems"][f"{view} {scheme} {width}"] = problems
                if task["shots"] and width in PICTURE_WIDTHS:
                    webp = page.evaluate(TO_WEBP, base64.b64encode(page.screenshot()).decode())
                    Path(task["shots"], f"{view}-{scheme}-{width}.webp").write_bytes(base64.b64decode(webp))
        page.close()


def first_answer(browser, task, found):
    """Chat as someone who only has the address."""
    page = browser.new_page()
    page.goto(task["url"])
    page.click("nav a[href='#chat']")
    page.wait_for_selector("option", state="attached")
    found["answer"] = ask(page, task["question"])


def look(browser, task, found):
    """Look at a page that only shows, with a client's key and without one; note the views, the buttons, the texts."""
    page = browser.new_page()
    page.goto(task["url"])
    wait_live(page)
    page.wait_for_selector("nav a:has-text('Memory')", state="hidden")
    found["views"] = page.eval_on_selector_all("nav a", "all => all.filter(e => e.checkVisibility()).map(e => e.text)")
    page.wait_for_selector("article .tag.ready")
    found["models"] = page.inner_text("article")
    found["buttons"] = page.locator("main button").count()
    page.goto(f"{task['url']}/#requests")  # a view that this page does not have
    page.wait_for_selector("article h3")
    page.click("article a:has-text('Chat')")
    page.wait_for_selector("option", state="attached")
    found["answer"] = ask(page, task["question"])
    stranger = browser.browser.new_page()  # leaves the question for a key without an answer
    stranger.goto(task["url"])
    stranger.wait_for_selector("#connection:has-text('key')")
    found["without key"] = stranger.inner_text("#connection")


def use(browser, task, found):
    """Chat, stop an answer, unload and load a model by keyboard, and try an action without the token."""
    page = browser.new_page()
    page.goto(address_of(task))
    wait_live(page)
    found["address"] = page.url
    page.click("nav a[href='#chat']")
    page.wait_for_selector("option", state="attached")
    found["answer"] = ask(page, task["question"])
    page.click("nav a[href='#models']")
    for action, word in (("unload", "idle"), ("load", "ready"), ("stop", "stopped"), ("start", "ready")):
        page.focus(f"[data-action='{action}']")
        page.keyboard.press("Enter")
        page.wait_for_selector(f".tag:text-is('{word}')")
        found["states"].append(word)
    other = browser.new_page()
    other.goto(task["url"])
    wait_live(other)
    other.click("nav a[href='#models']")
    other.click("[data-action='stop']")
    found["without token"] = other.inner_text("#notice")
    other.click("nav a[href='#logs']")
    found["logs without token"] = other.inner_text("main")


def deploy(browser, task, found):
    """Deploy from the page after its fit was shown, in spite of errors; keep the bodies of a request, and drop them."""
    page = browser.new_page()
    page.goto(address_of(task))
    wait_live(page)
    page.click("nav a[href='#models']")
    page.click("summary:has-text('Deploy a model')")
    page.wait_for_selector("optgroup option", state="attached")
    for name, source in (("Bad Name", "builtin://demo"), ("second", "/missing.gguf"), ("second", "builtin://demo")):
        page.fill("[name=service]", name)
        page.fill("[name=source]", source)
        page.keyboard.press("Enter")
        result = page.wait_for_selector("form .failing, form .ready")
        found["fits"].append(result.inner_text())
    page.click("form button.main")
    page.wait_for_selector("article:has-text('second') .tag.ready")
    page.click("nav a[href='#requests']")
    page.click("[data-minutes='60']")
    page.wait_for_selector("text=for 60 more min")
    page.click("nav a[href='#chat']")
    page.select_option("select", "second")
    ask(page, SECRET)
    page.click("nav a[href='#requests']")
    page.click(".request summary")
    page.wait_for_selector(".request pre")
    found["bodies"] = page.eval_on_selector_all(".request pre", "all => all.map(each => each.textContent)")
    page.click("[data-minutes='0']")
    page.wait_for_selector("text=answers are not kept.")
    page.click("nav a[href='#logs']")
    page.select_option("select", "")
    page.wait_for_selector(".log:has-text('page action carried out')")
    found["log"] = page.inner_text(".log")
    page.click("nav a[href='#requests']")
    page.click(".request summary")
    found["dropped"] = page.inner_text(".request details p")


SECRET = "My key is sk-0123456789abcdefghij. What is LLMKube?"
WATCH = """window.long = [];
new PerformanceObserver(list => window.long.push(...list.getEntries().map(each => Math.round(each.duration))))
  .observe({type: 'longtask', buffered: true})"""
COSTS = ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration")


def measure(browser, task, found):
    """Look at each view for some seconds while requests come; note long tasks, and script and layout per second.

    An update comes each second. Costs are those of the page's thread, without the time that other processes take.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(WATCH)
    page.goto(address_of(task))
    wait_live(page)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cost():
        named = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return 1000 * sum(named[each] for each in COSTS)

    for view, part in VIEWS.items():
        page.click(f"nav a[href='#{view}']")
        page.wait_for_selector(part, state="attached")
        page.wait_for_timeout(2000)  # the first drawing is not an update
        found["first"][view] = page.evaluate("window.long.splice(0)")
        costs = []
        for _ in range(task["seconds"]):
            before = cost()
            page.wait_for_timeout(1000)
            costs.append(round(cost() - before, 2))
        found["costs"][view] = sorted(costs)
        found["long"][view] = page.evaluate("window.long.splice(0)")


HOSTILE = "<img src=x onerror='document.title=1'><script>document.title=2</script>\u202e</pre></article>"


def show_hostile_text(browser, task, found):
    """Show markup in every text that a model, an engine or an object can set: it stays text."""
    page = browser.new_page()
    engine = dict.fromkeys(("service", "state", "priority"), HOSTILE) | {"reserved": 3, "held": 2, "idle": 0}
    memory = dict.fromkeys(("level", "why", "source"), HOSTILE) | {"total": 9, "available": 5, "budget": 6, "free": 3}
    memory |= {"devices": {HOSTILE: 8}, "engines": [engine | {"devices": {HOSTILE: 2}}]}
    memory["waiting"] = [{"service": HOSTILE, "needs": 5, "priority": HOSTILE}]
    texts = [
        "name",
        "namespace",
        "model",
        "phase",
        "state",
        "reason",
        "message",
        "advice",
        "priority",
        "size",
        "runsOn",
        "engine",
        "detail",
    ]
    service = dict.fromkeys(texts, HOSTILE) | {"aliases": [HOSTILE], "givenUp": [HOSTILE], "rates": [1, 2]}
    service |= {"message": f"{HOSTILE} 45 %", "state": "waiting", "used": 7, "context": 9, "slots": 1}
    state = {"host": HOSTILE, "memory": memory, "services": {HOSTILE: service}, "readOnly": not task["token"]}
    event = f"event: state\nid: x-1\ndata: {json.dumps(state)}\n\n"
    chat = json.dumps(
        {
            "choices": [{"delta": {"content": HOSTILE, "reasoning_content": HOSTILE}}],
            "usage": {"prompt_tokens": HOSTILE, "completion_tokens": 1},
        }
    )
    stream = {"Content-Type": "text/event-stream"}
    row = dict.fromkeys(("path", "model", "error", "id", "rule"), HOSTILE) | {"at": 1, "ms": 9, "failed": True}
    row |= {"status": HOSTILE, "parts": [[HOSTILE, 1, 2, False]], "body": 1}
    answers = {"request": HOSTILE, "answer": HOSTILE, "models": [{"name": HOSTILE, "title": HOSTILE, "sizeBytes": 1}]}
    answers |= dict.fromkeys(("totalBytes", "freeBytes", "budgetBytes", "context"), 5) | {"fits": True}
    answers |= {"lines": [HOSTILE], "largestContext": HOSTILE, "message": HOSTILE}
    batch = f"id: x-1\ndata: {json.dumps([row])}\n\n"
    page.route("**/page/requests", lambda route: route.fulfill(body=batch, headers=stream))
    page.route("**/page/actions", lambda route: route.fulfill(json=answers))
    page.route("**/page/events", lambda route: route.fulfill(body=event, headers=stream))
    page.route(
        re.compile(r"/page/logs\?"),
        lambda route: route.fulfill(body=f"data: {json.dumps(HOSTILE)}\n\n", headers=stream),
    )
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=f"data: {chat}\n\n", headers=stream))
    page.goto(address_of(task))
    for view, part in views_of(task).items():
        page.click(f"nav a[href='#{view}']")
        page.wait_for_selector(part, state="attached")
        if view == "chat":
            ask(page, HOSTILE)
        if view == "models" and task["token"]:
            page.click("summary:has-text('Deploy a model')")
            page.fill("[name=service]", HOSTILE)
            page.fill("[name=source]", HOSTILE)
            page.keyboard.press("Enter")
            page.wait_for_selector("form pre", state="attached")
        if view == "requests":
            page.click(".request summary")
            page.wait_for_selector(".request pre", state="attached")
        found["elements"] += page.evaluate("document.querySelectorAll('main img, main script').length")
        found["problems"] |= {f"hostile {view}": problem for problem in [page.evaluate(OVERFLOW)] if problem}
        found["title"] = page.title()


def attack(browser, task, found):
    """Open a page of another origin, one with a rebound name, and a frame."""
    page = browser.new_page()
    page.goto(task["foreign"])
    found["foreign"] = page.evaluate(
        """async ([url, token]) => {
          const attempt = async (path, options) => {
            try { return (await (await fetch(url + path, options)).text()).slice(0, 40) } catch { return 'blocked' }
          }
          const headers = {'X-LLMKube-Page-Token': token}, body = '{"action": "stop", "service": "default/demo"}'
          const deploy = '{"action": "deploy", "service": "evil", "source": "builtin://demo"}'
          const capture = '{"action": "capture", "service": "", "minutes": 60}'
          return [await attempt('/page/events', {}), await attempt('/page/events', {mode: 'no-cors'}),
            await attempt('/page/actions', {method: 'POST', headers, body}),
            await attempt('/page/actions', {method: 'POST', headers, body: deploy}),
            await attempt('/page/actions', {method: 'POST', headers, body: capture}),
            await attempt('/page/actions', {method: 'POST', mode: 'no-cors', body}),
            await attempt('/page/actions', {method: 'POST', mode: 'no-cors', body: deploy})]
        }""",
        [task["url"], task["token"]],
    )
    page.set_content(f"<iframe src='{task['url']}/'></iframe>")
    frame = page.frames[-1]
    frame.wait_for_load_state()
    found["frame"] = frame.evaluate("document.querySelector('nav') !== null") if frame.url != "about:blank" else False
    rebound = browser.new_page()
    found["rebound"] = rebound.goto(task["rebound"]).status


def main():
    """Carry out the task on the command line."""
    task = json.loads(sys.argv[1])
    found = {"elements": 0, "console": [], "problems": {}, "states": [], "urls": [], "fits": []}
    found |= {"costs": {}, "long": {}, "first": {}}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "chromium")
        program.write_text(f'#!/bin/sh\nexec {" ".join(task["chromium"])} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu", rules])
            for name in task["parts"]:
                globals()[name](Patient(browser, task.get("key")), task, found)
            browser.close()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()

// Requests: the last 2,000 with the parts of their time; errors first, and why one was slow in one line.

import { act, eachEvent, hasToken, request } from "./access.js";
import { h, Keyed, notify, ownerOnly } from "./dom.js";
import { onChange, state } from "./feed.js";

const KEPT = 2000;
const SHOWN = 100;
const WORDS = {
  hold: "waiting until the model was loaded", queue: "waiting for its turn", prefill: "reading the prompt",
  decode: "writing the answer", attempt: "at the engine", continuation: "continued by another engine",
};
const SHORT = {
  hold: "loading the model", queue: "waiting for its turn", prefill: "reading the prompt", decode: "writing the answer",
  attempt: "at the engine", continuation: "continued by another engine", failed: "failed attempt",
};

const rows = []; // the newest first
let lastId = "";
let received = 0;

function ms(value) {
  return value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

// The innermost parts of a request: an attempt is shown only where its prefill and decode are not known.
function parts(row) {
  const timed = row.parts.some(([name]) => name === "prefill" || name === "decode");
  return row.parts.filter(([name, , , failed]) => !timed || failed || !["attempt", "continuation"].includes(name));
}

export function why(row) {
  if (row.failed) return `Failed: ${row.error || `status ${row.status}`}`;
  const sums = new Map();
  for (const [name, , length] of parts(row)) sums.set(name, (sums.get(name) ?? 0) + length);
  const [name, length] = [...sums].sort(([, a], [, b]) => b - a)[0] ?? ["", 0];
  if (!name || length < row.ms / 3) return `${ms(row.ms)} in all`;
  const more = name === "prefill" && row.prompt ? ` of ${row.prompt} tokens, ${row.cached ?? 0} of them cached`
    : name === "decode" && row.answer ? ` of ${row.answer} tokens, ${((1000 * row.answer) / length).toFixed(1)} per second` : "";
  return `${ms(length)} of ${ms(row.ms)} ${WORDS[name] ?? name}${more}`;
}

function timeline(row) {
  const total = Math.max(row.ms, 1);
  const text = parts(row).map(([name, , length]) => `${SHORT[name] ?? name} ${ms(length)}`).join(", ") || ms(row.ms);
  return h("svg", { class: "time", viewBox: "0 0 1000 12", preserveAspectRatio: "none", role: "img", "aria-label": text },
    parts(row).map(([name, begin, length, failed]) => h("rect", {
      x: (1000 * begin) / total, y: 0, width: Math.max(2, (1000 * length) / total), height: 12,
      class: failed ? "t-failed" : `t-${name}`,
    }, h("title", {}, `${SHORT[name] ?? name}: ${ms(length)}`))));
}

// The bodies of a request, fetched when they are opened.
function bodies(row) {
  const content = h("div", {});
  return h("details", {
    ontoggle: async (event) => {
      if (!event.target.open || content.childElementCount) return;
      try {
        const found = await act("body", row.backend ?? "", { number: row.body });
        content.append(h("h4", {}, "Request"), h("pre", { tabindex: "0" }, found.request), h("h4", {}, "Answer"), h("pre", { tabindex: "0" }, found.answer));
      } catch (error) { content.append(h("p", { class: "soft" }, error.message)); }
    },
  }, h("summary", {}, "Prompt and answer"), content);
}

// Whether bodies are kept, and the buttons that change it.
function captures() {
  const text = h("span", { class: "soft" });
  const buttons = [["Keep them for 10 min", 10], ["Keep them for 1 hour", 60], ["Stop, and delete them", 0]].map(([label, minutes]) => h("button", {
    type: "button", "data-minutes": minutes,
    onclick: async () => { try { notify((await act("capture", "", { minutes })).message); } catch (error) { notify(error.message); } },
  }, label));
  const update = () => {
    const left = state.captureMinutes ?? 0;
    text.textContent = left ? `Prompts and answers are kept in memory for ${left} more min, and then deleted.` : "Prompts and answers are not kept.";
    buttons[0].hidden = buttons[1].hidden = left > 0;
    buttons[2].hidden = left === 0;
  };
  update();
  return [h("p", { class: "row" }, text, buttons), onChange(update)];
}

function draw(row) {
  const time = new Date(1000 * row.at).toLocaleTimeString();
  const tokens = row.answer ? `${row.prompt ?? 0} prompt + ${row.answer} answer tokens` : "";
  return h("li", { class: "card request" },
    h("div", { class: "row spread" },
      h("span", {}, h("b", {}, row.model || row.path), " ", h("span", { class: "soft" }, [time, row.path, tokens].filter(Boolean).join(" · "))),
      h("span", { class: `tag ${row.failed ? "failing" : "ready"}` }, row.status === 200 ? "200 OK" : String(row.status || "left"))),
    timeline(row),
    h("p", { class: row.failed ? "failing why" : "soft why" }, why(row)),
    row.id ? h("p", { class: "soft mono why" }, `request ${row.id}`) : null,
    row.body ? bodies(row) : null);
}

export function showRequests(main) {
  main.append(h("h2", {}, "Requests"));
  if (!hasToken()) {
    main.append(ownerOnly("see requests"));
    return undefined;
  }
  const only = h("select", { "aria-label": "Order" }, h("option", { value: "errors" }, "Errors first"),
    h("option", { value: "new" }, "Newest first"), h("option", { value: "slow" }, "Slowest first"));
  const model = h("input", { type: "search", placeholder: "Filter by model, path or id", "aria-label": "Filter" });
  const count = h("p", { class: "soft" });
  const list = h("ol", { class: "requests" });
  const keyed = new Keyed(list, draw);
  const [keeping, forget] = captures();
  const key = h("ul", { class: "row key" });
  let used = "";
  const explain = (found) => { // the colors that are in use
    const kinds = new Set(found.flatMap((row) => parts(row).map(([name, , , failed]) => (failed ? "failed" : name))));
    const names = Object.keys(SHORT).filter((each) => kinds.has(each));
    if (names.join() === used) return;
    used = names.join();
    key.replaceChildren(...names.map((name) => h("li", {}, h("span", { class: `swatch t-${name}` }), ` ${SHORT[name]}`)));
  };
  main.append(h("p", { class: "row" }, only, model), keeping, key, count, list);
  let queued = 0;
  const show = () => {
    queued = 0;
    const text = model.value.toLowerCase();
    let found = text ? rows.filter((row) => `${row.model} ${row.path} ${row.id}`.toLowerCase().includes(text)) : [...rows];
    if (only.value === "errors") found = [...found.filter((row) => row.failed), ...found.filter((row) => !row.failed)];
    if (only.value === "slow") found.sort((a, b) => b.ms - a.ms);
    count.textContent = rows.length ? `${found.length === rows.length ? "The" : `${found.length} of the`} last ${rows.length === 1 ? "request" : `${rows.length} requests`}${found.length > SHOWN ? `, the first ${SHOWN} are shown` : ""}` : "No requests yet.";
    explain(found.slice(0, SHOWN));
    keyed.update(found.slice(0, SHOWN).map((row) => [row.key, row]));
  };
  const later = () => { queued = queued || setTimeout(show, 250); };
  only.addEventListener("change", show);
  model.addEventListener("input", later);
  const reading = new AbortController();
  const follow = async () => {
    while (!reading.signal.aborted) {
      try {
        const options = { signal: reading.signal, headers: lastId ? { "Last-Event-ID": lastId } : {} };
        await eachEvent(await request("/page/requests", options), (_, data, id) => {
          if (!lastId || lastId.split("-")[0] !== id.split("-")[0]) rows.length = 0; // another process
          lastId = id;
          const fresh = JSON.parse(data).reverse();
          for (let at = fresh.length - 1; at >= 0; at -= 1) fresh[at].key = (received += 1);
          rows.unshift(...fresh);
          rows.length = Math.min(rows.length, KEPT);
          later();
        });
      } catch (error) {
        if (!reading.signal.aborted) count.textContent = error.message;
      }
      await new Promise((done) => setTimeout(done, 1000));
    }
  };
  show();
  follow();
  return () => { forget(); reading.abort(); clearTimeout(queued); };
}

// Requests: the last 2,000 with the parts of their time; errors first, and why one was slow in one line.

import { eachEvent, hasToken, request } from "./access.js";
import { h } from "./dom.js";

const KEPT = 2000;
const SHOWN = 200;
const WORDS = {
  hold: "waiting until the model was loaded", queue: "waiting for a free slot", prefill: "reading the prompt",
  decode: "writing the answer", attempt: "at an engine that did not answer", continuation: "continued by another engine",
};

const rows = []; // the newest first
let lastId = "";

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
  if (!name || length < row.ms / 3) return ms(row.ms);
  const more = name === "prefill" && row.prompt ? ` of ${row.prompt} tokens, ${row.cached ?? 0} of them cached`
    : name === "decode" && row.answer ? ` of ${row.answer} tokens, ${((1000 * row.answer) / length).toFixed(1)} per second` : "";
  return `${ms(length)} of ${ms(row.ms)} ${WORDS[name] ?? name}${more}`;
}

function timeline(row) {
  const total = Math.max(row.ms, 1);
  const text = parts(row).map(([name, , length]) => `${name} ${ms(length)}`).join(", ") || ms(row.ms);
  return h("svg", { class: "time", viewBox: "0 0 1000 12", preserveAspectRatio: "none", role: "img", "aria-label": text },
    parts(row).map(([name, begin, length, failed]) => h("rect", {
      x: (1000 * begin) / total, y: 0, width: Math.max(2, (1000 * length) / total), height: 12,
      class: failed ? "t-failed" : `t-${name}`,
    }, h("title", {}, `${name}: ${ms(length)}`))));
}

function draw(row) {
  const time = new Date(1000 * row.at).toLocaleTimeString();
  const tokens = row.answer ? `${row.prompt ?? 0} + ${row.answer} tokens` : "";
  return h("li", { class: "card request" },
    h("div", { class: "row spread" },
      h("span", {}, h("b", {}, row.model || row.path), " ", h("span", { class: "soft" }, `${time} ${row.path} ${tokens}`)),
      h("span", { class: `tag ${row.failed ? "failing" : "ready"}` }, String(row.status || "left"))),
    timeline(row),
    h("p", { class: row.failed ? "failing why" : "soft why" }, why(row)),
    row.id ? h("p", { class: "soft mono why" }, `request ${row.id}`) : null);
}

export function showRequests(main) {
  main.append(h("h2", {}, "Requests"));
  if (!hasToken()) {
    main.append(h("p", {}, "Run ", h("code", {}, "llmkube page"), " in a terminal: it opens this page with the right to see requests."));
    return undefined;
  }
  const only = h("select", { "aria-label": "Order" }, h("option", { value: "errors" }, "Errors first"),
    h("option", { value: "new" }, "Newest first"), h("option", { value: "slow" }, "Slowest first"));
  const model = h("input", { type: "search", placeholder: "Model, path or request", "aria-label": "Filter" });
  const count = h("p", { class: "soft" });
  const list = h("ol", { class: "requests" });
  const key = h("ul", { class: "row key" }, Object.keys(WORDS).map((name) => h("li", {},
    h("span", { class: `swatch t-${name}` }), ` ${name}`)));
  main.append(h("p", { class: "row" }, only, model), key, count, list);
  let queued = 0;
  const show = () => {
    queued = 0;
    const text = model.value.toLowerCase();
    const found = rows.filter((row) => !text || `${row.model} ${row.path} ${row.id}`.toLowerCase().includes(text));
    if (only.value === "errors") found.sort((a, b) => Number(b.failed) - Number(a.failed)); // stable: newest first
    if (only.value === "slow") found.sort((a, b) => b.ms - a.ms);
    count.textContent = rows.length ? `${found.length} of the last ${rows.length} requests` : "No requests yet.";
    list.replaceChildren(...found.slice(0, SHOWN).map(draw));
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
          rows.unshift(...JSON.parse(data).reverse());
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
  return () => { reading.abort(); clearTimeout(queued); };
}

// Memory: which engine holds what, what is reserved, what is free, and what may be unloaded.

import { bytes, h, seconds } from "./dom.js";
import { onChange, state } from "./feed.js";

const COLORS = 6;

function color(name) {
  let sum = 0;
  for (const each of name) sum = (sum * 31 + each.codePointAt(0)) >>> 0;
  return `f${sum % COLORS}`;
}

const short = (service) => service.replace(/^default\//, "");

// One bar: for each engine what it holds, and lighter what else is reserved for it; a dashed line at the budget; other
// programs at the right end.
function bar(label, total, parts, limit, others) {
  const svg = h("svg", { class: "bar", viewBox: "0 0 1000 48", preserveAspectRatio: "none", role: "img", "aria-label": label });
  let left = 0;
  const add = (size, kind, text) => {
    if (size <= 0) return;
    const width = Math.max(6, (1000 * size) / total); // visible, however small
    svg.append(h("rect", { x: left, y: 0, width, height: 48, class: kind }, h("title", {}, text)));
    left += width;
  };
  for (const part of parts) {
    const held = Math.min(part.held ?? part.reserved, Math.max(part.reserved, part.held ?? 0));
    add(held, part.color, `${part.name}: ${bytes(held)} held`);
    add(Math.max(0, part.reserved - held), `${part.color} reserved`, `${part.name}: ${bytes(part.reserved)} reserved`);
  }
  if (others) {
    const width = (1000 * others) / total;
    svg.append(h("rect", { x: 1000 - width, y: 0, width, height: 48, class: "fother" }, h("title", {}, `other programs: ${bytes(others)}`)));
  }
  if (limit) {
    const x = Math.min(999, (1000 * limit) / total);
    svg.append(h("line", { class: "limit", x1: x, x2: x, y1: 0, y2: 48 }, h("title", {}, `budget ${bytes(limit)}`)));
  }
  return svg;
}

function describe(engine) {
  const facts = [];
  if (engine.state !== "serving") facts.push(engine.state);
  if (engine.requests) facts.push(`${engine.requests} request${engine.requests === 1 ? "" : "s"}`);
  else if (engine.state === "serving") facts.push(`idle for ${seconds(engine.idle)}`);
  facts.push(`priority ${engine.priority}`);
  if (engine.pinned) facts.push("pinned");
  if (engine.protected) facts.push("protected from eviction");
  if (engine.mayGo && engine.state === "serving") facts.push("may be unloaded for another model");
  return facts.join(", ");
}

function legend(engines, size) {
  return h("ul", { class: "legend" }, engines.map((engine) => h("li", {},
    h("span", { class: `swatch ${color(engine.service)}` }),
    h("a", { href: `#models/${encodeURIComponent(engine.service)}` }, short(engine.service)),
    h("span", {}, size(engine)),
    h("small", {}, describe(engine)))));
}

function device(name, total, engines) {
  const parts = engines.filter((each) => each.devices[name]).map((each) => (
    { name: short(each.service), reserved: each.devices[name], held: each.devices[name], color: color(each.service) }));
  const used = parts.reduce((sum, each) => sum + each.reserved, 0);
  return h("section", { class: "card" },
    h("h3", {}, name === "device" ? "Graphics memory (part of the machine's)" : name),
    h("p", { class: "soft" }, `${bytes(used)} of ${bytes(total)} reserved`),
    bar(`${name}: ${bytes(used)} of ${bytes(total)} reserved`, Math.max(total, used), parts));
}

function draw() {
  const memory = state.memory;
  if (!memory) {
    const why = state.host ? "This host does not watch its memory." : "Waiting for the first figures.";
    return [h("h2", {}, "Memory"), h("p", { class: "soft" }, why)];
  }
  const engines = [...memory.engines].sort((a, b) => b.reserved - a.reserved);
  const reserved = engines.reduce((sum, each) => sum + each.reserved, 0);
  const parts = engines.map((each) => ({ ...each, name: short(each.service), color: color(each.service) }));
  const held = engines.reduce((sum, each) => sum + (each.held ?? 0), 0);
  const others = Math.max(0, memory.total - memory.available - held);
  const limited = memory.free < memory.budget - reserved ? ", limited by other programs" : "";
  const text = `${bytes(reserved)} of a budget of ${bytes(memory.budget)} reserved, ${bytes(memory.free)} free for one more model${limited}`;
  return [
    h("h2", {}, "Memory"),
    memory.level === "normal" ? null : h("p", { class: "card failing" }, `Memory pressure: ${memory.level}. ${memory.why}`),
    state.cordoned ? h("p", { class: "card waiting" }, "This host is cordoned: it starts no engines.") : null,
    h("section", { class: "card" },
      h("h3", {}, state.host),
      h("p", { class: "soft" }, text),
      bar(text, memory.total, parts, memory.budget, others),
      h("p", { class: "soft" }, "An engine is the program that runs a model."),
      h("ul", { class: "row key" }, [[parts[0]?.color ?? "f0", "in use"], [`${parts[0]?.color ?? "f0"} reserved`, "reserved, not in use yet"],
        ["fother", "other programs"], ["limit", "budget for engines"]].map(([kind, name]) => h("li", {}, h("span", { class: `swatch ${kind}` }), ` ${name}`))),
      legend(engines, (each) => (each.held === null ? `${bytes(each.reserved)} reserved`
        : `${bytes(each.held)} in use of ${bytes(each.reserved)} reserved`)),
      engines.length ? null : h("p", {}, "No engine runs."),
      h("dl", { class: "figures" }, [
        ["Machine", bytes(memory.total)],
        ["Available to programs", bytes(memory.available)],
        ["Budget for engines", `${bytes(memory.budget)}${memory.source ? ` (${memory.source})` : ""}`],
        ["Other programs", bytes(others)],
        memory.unreturned ? ["Kept by the system after engines exited", bytes(memory.unreturned)] : null,
      ].filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))))),
    memory.waiting.length ? h("section", { class: "card" },
      h("h3", {}, "Waiting for memory"),
      h("ul", {}, memory.waiting.map((each) => h("li", {},
        `${short(each.service)} needs ${bytes(each.needs)}, priority ${each.priority}`)))) : null,
    ...Object.entries(memory.devices).map(([name, total]) => device(name, total, engines)),
  ].filter(Boolean);
}

export function showMemory(main) {
  let before = "";
  const update = () => {
    const now = JSON.stringify([state.memory, state.cordoned, state.host]);
    if (now === before) return;
    before = now;
    main.replaceChildren(...draw());
  };
  update();
  return onChange(update);
}

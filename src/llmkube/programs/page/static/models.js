// Models: state, reason and next step, tokens per second over the last hour, and actions.

import { act, hasToken } from "./access.js";
import { deployForm } from "./deploy.js";
import { h, Keyed, notify, ownerOnly, share } from "./dom.js";
import { onChange, state } from "./feed.js";

function plot(points) {
  const most = Math.max(...points);
  const x = (index) => 1000 - (points.length - 1 - index) * (1000 / 359);
  const path = `M0 38L${x(0).toFixed(1)} 38` + points.map((each, index) => `L${x(index).toFixed(1)} ${(38 - (36 * each) / most).toFixed(1)}`).join("");
  const now = points[points.length - 1];
  const label = `${now} tokens per second over the last 10 s; in the last hour at most ${most}`;
  return h("figure", {},
    h("svg", { class: "plot", viewBox: "0 0 1000 40", preserveAspectRatio: "none", role: "img", "aria-label": label }, h("path", { d: path })),
    h("figcaption", { class: "soft" }, label));
}

const EFFECTS = {
  load: "Load it now", unload: "Free its memory; the next request loads it again", pin: "Never unload it for another model",
  restart: "End the program that runs it, and start a new one", start: "Serve it again", stop: "Serve it no more until it is started",
};

function button(label, action, service, enabled = true) {
  return h("button", {
    type: "button", "data-action": action, title: EFFECTS[action], disabled: !enabled,
    onclick: async (event) => {
      if (!hasToken()) { notify("Run `llmkube page` in a terminal: it opens this page with the right to change things."); return; }
      event.target.disabled = true;
      try { notify((await act(action, service)).message); } catch (error) { notify(error.message); }
      event.target.disabled = !enabled;
    },
  }, label);
}

function actions(model, key) {
  if (state.readOnly) return [];
  if (model.stopped) return [button("Start", "start", key)];
  const list = [];
  if (model.onRequest) {
    list.push(model.loaded ? button("Unload", "unload", key) : button("Load", "load", key));
    list.push(button("Keep loaded", "pin", key));
  }
  return [...list, button("Restart", "restart", key, model.loaded), button("Stop", "stop", key)];
}

function figures(model) {
  return h("dl", { class: "figures" }, [
    ["Model", model.model === model.name ? "" : model.model], ["Size", model.size], ["Runs on", model.runsOn], ["Engine", model.engine, "The program that runs the model"],
    ["Context", model.context ? `${model.context} tokens, ${model.slots} request${model.slots === 1 ? "" : "s"} at a time` : ""],
    ["Ready engines", model.pods ? String(model.pods) : ""], ["Priority", model.priority], ["Restarts", model.restarts ? String(model.restarts) : ""],
    ["Also called", (model.aliases ?? []).join(", ")], ["Sees pictures", model.vision ? "yes" : ""],
    ["Load took", model.loadSeconds ? `${model.loadSeconds} s` : ""],
  ].filter(([, value]) => value).map(([name, value, title]) => h("div", { title }, h("dt", {}, name), h("dd", {}, value))));
}

// A bar of the percentage that the message reports.
function progress(model) {
  const percent = model.state === "waiting" && /(\d+) %/.exec(model.message ?? "")?.[1];
  return percent ? share(`${percent} % done`, percent / 100) : null;
}

// The tokens of the last answer and its prompt, of the context of one request.
function contextUse(model) {
  if (!model.used || !model.context) return null;
  const most = Math.floor(model.context / (model.slots || 1));
  const label = `Context: ${model.used} of ${most} tokens in the last answer`;
  return h("figure", {}, share(label, model.used / most, model.used > 0.9 * most ? "t-failed" : "f0"), h("figcaption", { class: "soft" }, label));
}

function draw(model, key) {
  const name = model.namespace === "default" ? model.name : key;
  const word = model.state === "ready" && model.onRequest && !model.loaded ? "idle" : (model.phase || model.state).toLowerCase();
  const why = [model.reason, (model.message || "").split("\n")[0]].filter(Boolean).join(": ");
  return h("article", { class: "card", id: key, "aria-label": name },
    h("div", { class: "row spread" }, h("h3", {}, name), h("span", { class: `tag ${model.state}` }, word)),
    why ? h("p", { class: `why ${model.state}` }, why) : model.loaded ? null : h("p", { class: "soft why" }, model.detail ?? ""),
    progress(model),
    model.advice ? h("p", { class: "why" }, `Next step: ${model.advice}`) : null,
    (model.givenUp ?? []).map((each) => h("p", { class: "why waiting" }, `Not in effect: ${each}`)),
    figures(model),
    model.rates ? plot(model.rates) : null,
    contextUse(model),
    h("p", { class: "row" }, actions(model, key),
      h("a", { href: `#chat/${encodeURIComponent(name)}` }, "Chat"), state.readOnly ? null : h("a", { href: `#logs/${encodeURIComponent(key)}` }, "Log")));
}

const SHOWN = 100; // cards; the filter finds the others

const rank = (model) => (model.state === "failing" ? 0 : 1);

export function showModels(main, chosen) {
  const list = h("div", { class: "models" });
  const empty = h("p", { class: "soft" }, "No models yet.");
  const filter = h("input", { type: "search", placeholder: "Name, model, state or reason", "aria-label": "Filter" });
  if (Object.keys(state.services).length > SHOWN) filter.value = chosen;
  const count = h("span", { class: "soft", role: "status" });
  const keyed = new Keyed(list, draw, () => {
    const found = chosen && document.getElementById(chosen);
    if (found) { chosen = ""; found.scrollIntoView(); }
  });
  const owner = hasToken() ? deployForm() : ownerOnly("deploy, load and stop models");
  main.append(h("h2", {}, "Models"), owner, h("p", { class: "row" }, filter, count), empty, list);
  const update = () => {
    const text = filter.value.toLowerCase();
    const all = Object.entries(state.services);
    const items = all.filter(([key, each]) => !text || `${key} ${each.model} ${each.state} ${each.phase} ${each.reason}`.toLowerCase().includes(text))
      .sort(([a, one], [b, other]) => rank(one) - rank(other) || (a < b ? -1 : 1));
    filter.hidden = all.length < 5;
    owner.hidden = Boolean(state.readOnly);
    const note = text || items.length > SHOWN ? `${items.length} of ${all.length}${items.length > SHOWN ? `, the first ${SHOWN} are shown` : ""}` : "";
    if (count.textContent !== note) count.textContent = note;
    empty.hidden = all.length > 0;
    keyed.update(items.slice(0, SHOWN));
  };
  filter.addEventListener("input", update);
  update();
  return onChange(update);
}

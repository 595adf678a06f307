// Models: state, reason and next step, tokens per second over the last hour, and actions.

import { act, hasToken } from "./access.js";
import { h, Keyed, notify } from "./dom.js";
import { onChange, state } from "./feed.js";

function plot(points) {
  const most = Math.max(...points);
  const x = (index) => 1000 - (points.length - 1 - index) * (1000 / 359);
  const path = points.map((each, index) => `${index ? "L" : "M"}${x(index).toFixed(1)} ${(38 - (36 * each) / most).toFixed(1)}`).join("");
  const now = points[points.length - 1];
  const label = `${now} tokens per second now, at most ${most} in the last hour`;
  return h("figure", {},
    h("svg", { class: "plot", viewBox: "0 0 1000 40", preserveAspectRatio: "none", role: "img", "aria-label": label }, h("path", { d: path })),
    h("figcaption", { class: "soft" }, label));
}

function button(label, action, service, enabled = true) {
  return h("button", {
    type: "button", "data-action": action, disabled: !enabled,
    onclick: async (event) => {
      if (!hasToken()) { notify("Run `llmkube page` in a terminal: it opens this page with the right to change things."); return; }
      event.target.disabled = true;
      try { notify(await act(action, service)); } catch (error) { notify(error.message); }
      event.target.disabled = !enabled;
    },
  }, label);
}

function actions(model, key) {
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
    ["Model", model.model], ["Size", model.size], ["Runs on", model.runsOn], ["Engine", model.engine],
    ["Context", model.context ? `${model.context} tokens, ${model.slots} slot${model.slots === 1 ? "" : "s"}` : ""],
    ["Priority", model.priority], ["Restarts", model.restarts ? String(model.restarts) : ""],
    ["Also called", (model.aliases ?? []).join(", ")], ["Sees pictures", model.vision ? "yes" : ""],
    ["Last load", model.loadSeconds ? `${model.loadSeconds} s` : ""],
  ].filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function draw(model, key) {
  const name = model.namespace === "default" ? model.name : key;
  const word = model.state === "ready" && model.onRequest && !model.loaded ? "idle" : (model.phase || model.state).toLowerCase();
  const why = [model.reason, (model.message || "").split("\n")[0]].filter(Boolean).join(": ");
  return h("article", { class: "card", id: key, "aria-label": name },
    h("div", { class: "row spread" }, h("h3", {}, name), h("span", { class: `tag ${model.state}` }, word)),
    why ? h("p", { class: `why ${model.state}` }, why) : h("p", { class: "soft why" }, model.detail ?? ""),
    model.advice ? h("p", { class: "why" }, `Next step: ${model.advice}`) : null,
    (model.givenUp ?? []).map((each) => h("p", { class: "why waiting" }, `Not in effect: ${each}`)),
    figures(model),
    model.rates ? plot(model.rates) : null,
    h("p", { class: "row" }, actions(model, key),
      h("a", { href: `#chat/${encodeURIComponent(name)}` }, "Chat"), h("a", { href: `#logs/${encodeURIComponent(key)}` }, "Log")));
}

export function showModels(main, chosen) {
  const list = h("div", { class: "models" });
  const empty = h("p", { class: "soft" }, "No models yet. Deploy one: ", h("code", {}, "llmkube catalog list"), ", then ",
    h("code", {}, "llmkube deploy NAME"), ".");
  const keyed = new Keyed(list, draw);
  main.append(h("h2", {}, "Models"), empty, list);
  const update = () => {
    const items = Object.entries(state.services).sort(([a], [b]) => (a < b ? -1 : 1));
    empty.hidden = items.length > 0;
    keyed.update(items);
  };
  update();
  if (chosen) document.getElementById(chosen)?.scrollIntoView();
  return onChange(update);
}

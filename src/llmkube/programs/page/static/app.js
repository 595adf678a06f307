// Start the page: one view at a time, chosen by the address's fragment.

import "./access.js";
import { follow, onChange, state } from "./feed.js";
import { showChat } from "./chat.js";
import { showLogs } from "./logs.js";
import { showMemory } from "./memory.js";
import { showModels } from "./models.js";
import { showRequests } from "./requests.js";

const SHARED = ["models", "chat"]; // the views of a page that only shows the models of a cluster
const VIEWS = { memory: showMemory, models: showModels, requests: showRequests, chat: showChat, logs: showLogs };
const main = document.getElementById("main");
let close = () => {};

function show() {
  const name = location.hash.slice(1).split("/")[0];
  const isThere = VIEWS[name] && (!state.readOnly || SHARED.includes(name));
  const view = isThere ? name : state.readOnly ? "models" : "memory";
  close();
  main.replaceChildren();
  close = VIEWS[view](main, decodeURIComponent(location.hash.split("/").slice(1).join("/"))) ?? (() => {});
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view[0].toUpperCase()}${view.slice(1)} · LLMKube`;
}

addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); });
show();
follow((text) => {
  document.getElementById("connection").textContent = text === "Live" && state.host ? `Live: ${state.host}` : text;
});
let isShared = false;
onChange(() => {
  document.getElementById("connection").textContent = `Live: ${state.host}`;
  if (isShared === Boolean(state.readOnly)) return;
  isShared = Boolean(state.readOnly);
  for (const link of document.querySelectorAll("nav a")) link.hidden = isShared && !SHARED.includes(link.hash.slice(1));
  if (isShared && !SHARED.includes(location.hash.slice(1).split("/")[0])) show();
});

// The state of all views, kept up to date by the server; after a break only what was missed is sent.

import { eachEvent, request } from "./access.js";

export const state = { services: {} };
const listeners = new Set();
let lastId = "";

export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function apply(name, data, id) {
  const patch = JSON.parse(data);
  if (name === "state") {
    for (const key of Object.keys(state)) delete state[key];
    Object.assign(state, { services: {} }, patch);
  } else if (name === "update") {
    const { services = {}, ...others } = patch;
    Object.assign(state, others);
    for (const [key, value] of Object.entries(services)) {
      if (value === null) delete state.services[key];
      else state.services[key] = value;
    }
  }
  lastId = id || lastId;
  for (const listener of listeners) listener();
}

// Follow the server for ever; `report` gets the state of the connection in words.
export async function follow(report) {
  for (let wait = 500; ; wait = Math.min(wait * 2, 15000)) {
    try {
      const answer = await request("/page/events", { headers: lastId ? { "Last-Event-ID": lastId } : {} });
      report("Live");
      wait = 500;
      await eachEvent(answer, apply);
      report("Connection lost, reconnecting");
    } catch (error) {
      const text = error.status === 401 ? "A key is required; reload the page to enter one" : error.message;
      report(error.status ? text : "No connection, retrying");
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}

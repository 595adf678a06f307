// Keys: that of this page's owner, from the address's fragment, and that of a client, if the listener requires one.

const OWNER = "llmkube-page-token";
const CLIENT = "llmkube-key";

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(OWNER, given);
  history.replaceState(null, "", `${location.pathname}#memory`); // so that it is not copied with the address
}

export const hasToken = () => Boolean(sessionStorage.getItem(OWNER));

let refused = false; // the user has no key: it is not asked for again before the page is reloaded

function headers(more) {
  const lines = { ...more };
  const [owner, client] = [sessionStorage.getItem(OWNER), sessionStorage.getItem(CLIENT)];
  if (owner) lines["X-LLMKube-Page-Token"] = owner;
  if (client) lines.Authorization = `Bearer ${client}`;
  return lines;
}

// Send a request; ask for a key once if the listener requires one. Throws an Error with the server's message.
export async function request(path, options = {}) {
  const send = () => fetch(path, { ...options, headers: headers(options.headers) });
  let answer = await send();
  if (answer.status === 401 && !refused) {
    const key = prompt("This address requires a key. Its owner has one.");
    if (key) { sessionStorage.setItem(CLIENT, key); answer = await send(); } else refused = true;
    if (answer.status === 401) sessionStorage.removeItem(CLIENT);
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    const error = new Error(body.error?.message ?? `HTTP ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return answer;
}

// Call `take(event, data, id)` for each server-sent event of a response, until it ends or `signal` aborts.
export async function eachEvent(answer, take) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      let [name, id, data] = ["message", "", null];
      for (const line of part.split(/\r?\n/)) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("id:")) id = line.slice(3).trim();
        else if (line.startsWith("data:")) data = (data === null ? "" : `${data}\n`) + line.slice(5).trimStart();
      }
      if (data !== null) take(name, data, id);
    }
  }
}

// Carry out an action and return the server's answer; most have a `message`.
export async function act(action, service, fields = {}) {
  const body = JSON.stringify({ action, service, ...fields });
  const answer = await request("/page/actions", { method: "POST", body, headers: { "Content-Type": "application/json" } });
  return answer.json();
}

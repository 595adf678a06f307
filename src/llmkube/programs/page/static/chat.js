// Chat: a conversation on the endpoint that clients use.

import { eachEvent, request } from "./access.js";
import { h, notify } from "./dom.js";
import { onChange, state } from "./feed.js";

const turns = []; // {role, text, thinking, image, error}; kept while the page is open
let model = "";

// Split a text at its fences: prose as it is, code in <pre>.
function prose(text) {
  return text.split(/^```[^\n]*\n?/m).map((part, index) => (index % 2 ? h("pre", {}, part) : part));
}

function draw(turn) {
  const usage = turn.usage ? h("p", { class: "soft" }, turn.usage) : null;
  return h("div", { class: `turn ${turn.error ? "error" : turn.role}` },
    h("b", { class: "who" }, turn.role === "user" ? "You" : turn.model || "Answer"),
    turn.image ? h("img", { src: turn.image, alt: "attached picture" }) : null,
    turn.thinking ? h("details", {}, h("summary", {}, "Thinking"), turn.thinking) : null,
    turn.tools ? h("details", { open: true }, h("summary", {}, "Calls of tools"), h("pre", {}, turn.tools)) : null,
    ...prose(turn.error || turn.text), usage);
}

function messages() {
  return turns.filter((each) => !each.error && (each.text || each.image)).map((each) => ({
    role: each.role,
    content: each.image ? [{ type: "text", text: each.text }, { type: "image_url", image_url: { url: each.image } }] : each.text,
  }));
}

const body = (stream) => ({ model, messages: messages(), stream, ...(stream ? { stream_options: { include_usage: true } } : {}) });

function asCurl() {
  const text = JSON.stringify(body(false)).replaceAll("'", "'\\''");
  return `curl ${location.origin}/v1/chat/completions -H 'Content-Type: application/json' -d '${text}'`;
}

function asPython() {
  return ["from openai import OpenAI", "", `client = OpenAI(base_url=${JSON.stringify(`${location.origin}/v1`)}, api_key="none")`,
    `answer = client.chat.completions.create(model=${JSON.stringify(model)}, messages=${JSON.stringify(messages())})`,
    "print(answer.choices[0].message.content)"].join("\n");
}

async function copy(text) {
  try { await navigator.clipboard.writeText(text); notify("Copied."); } catch { notify(text); }
}

async function answer(signal, changed) {
  const turn = { role: "assistant", model, text: "", thinking: "", tools: "" };
  turns.push(turn);
  changed();
  const started = performance.now();
  try {
    const reply = await request("/v1/chat/completions", {
      method: "POST", body: JSON.stringify(body(true)), headers: { "Content-Type": "application/json" }, signal });
    await eachEvent(reply, (_, data) => {
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) throw new Error(part.error.message);
      const delta = part.choices?.[0]?.delta ?? {};
      turn.text += delta.content ?? "";
      turn.thinking += delta.reasoning_content ?? delta.reasoning ?? "";
      for (const call of delta.tool_calls ?? []) turn.tools += `${call.function?.name ?? ""}${call.function?.arguments ?? ""}`;
      if (part.usage) {
        const time = (performance.now() - started) / 1000;
        turn.usage = `${part.usage.prompt_tokens} prompt + ${part.usage.completion_tokens} answer tokens in ${time.toFixed(1)} s`;
      }
      changed();
    });
  } catch (error) {
    if (error.name === "AbortError") turn.usage = "Stopped.";
    else turn.error = error.message;
  }
  changed();
}

export function showChat(main, chosen) {
  const picker = h("select", { "aria-label": "Model", onchange: () => { model = picker.value; } });
  const talk = h("div", { class: "talk", role: "log", "aria-live": "polite", "aria-label": "Conversation" });
  const input = h("textarea", { "aria-label": "Message", placeholder: "Message; Enter sends, Shift+Enter adds a line" });
  const picture = h("input", { type: "file", accept: "image/*" });
  const send = h("button", { class: "main", type: "button" }, "Send");
  let running = null;
  if (chosen) model = chosen;

  let queued = false;
  const redraw = () => {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { // at most once per frame, whatever arrives
      queued = false;
      const last = turns[turns.length - 1];
      if (talk.children.length > turns.length) talk.replaceChildren();
      while (talk.children.length < turns.length) talk.append(draw(turns[talk.children.length]));
      if (last) talk.lastElementChild.replaceWith(draw(last));
    });
  };
  const models = () => {
    const ids = Object.values(state.services).map((each) => (each.namespace === "default" ? each.name : `${each.namespace}/${each.name}`)).sort();
    if (ids.join() !== [...picker.options].map((each) => each.value).join()) {
      picker.replaceChildren(...ids.map((each) => h("option", { value: each }, each)));
    }
    if (!ids.includes(model)) model = ids[0] ?? "";
    picker.value = model;
    send.disabled = !running && !ids.length;
  };
  const submit = async () => {
    if (running) { running.abort(); return; }
    const text = input.value.trim();
    if (!text || !model) return;
    const file = picture.files[0];
    const image = file ? await new Promise((done) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(file);
    }) : null;
    turns.push({ role: "user", text, image });
    input.value = picture.value = "";
    running = new AbortController();
    send.textContent = "Stop";
    await answer(running.signal, redraw);
    running = null;
    send.textContent = "Send";
    input.focus();
  };
  send.addEventListener("click", submit);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
  });
  main.append(
    h("h2", {}, "Chat"),
    h("p", { class: "row" }, picker,
      h("button", { type: "button", onclick: () => copy(asCurl()) }, "Copy as curl"),
      h("button", { type: "button", onclick: () => copy(asPython()) }, "Copy as Python"),
      h("button", { type: "button", onclick: () => { turns.length = 0; redraw(); } }, "New conversation")),
    talk, input, h("p", { class: "row spread" }, h("label", {}, "Picture ", picture), send));
  models();
  redraw();
  const forget = onChange(models);
  return () => { forget(); running?.abort(); };
}

// Logs of engines, live.

import { eachEvent, hasToken, request } from "./access.js";
import { h, ownerOnly } from "./dom.js";
import { onChange, state } from "./feed.js";

const MAX_CHARS = 400_000; // the oldest lines are dropped

export function showLogs(main, chosen) {
  const picker = h("select", { "aria-label": "Service" });
  const text = h("pre", { class: "log mono", tabindex: "0", role: "log", "aria-label": "Log" });
  main.append(h("h2", {}, "Logs"));
  if (!hasToken()) {
    main.append(ownerOnly("read logs, which may contain prompts"));
    return undefined;
  }
  main.append(h("p", { class: "row" }, picker), text);
  let reading = new AbortController();
  const read = async (service) => {
    reading.abort();
    reading = new AbortController();
    const { signal } = reading;
    text.textContent = "";
    try {
      const answer = await request(`/page/logs?service=${encodeURIComponent(service)}`, { signal });
      await eachEvent(answer, (_, data) => {
        const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
        text.append(JSON.parse(data));
        if (text.textContent.length > MAX_CHARS) text.textContent = text.textContent.slice(-MAX_CHARS / 2);
        if (atEnd) text.scrollTop = text.scrollHeight;
      });
    } catch (error) {
      if (!signal.aborted) text.append(error.message);
    }
  };
  picker.addEventListener("change", () => read(picker.value));
  const update = () => {
    if (!state.host) return; // nothing is known yet
    const names = ["", ...Object.keys(state.services).sort()];
    if (names.join() === [...picker.options].map((each) => each.value).join()) return;
    const isFirst = picker.options.length === 0;
    const before = isFirst ? chosen || names[1] : picker.value; // an engine first, if there is one
    picker.replaceChildren(...names.map((each) => h("option", { value: each }, each ? `engine of ${each.replace(/^default\//, "")}` : "llmkube up")));
    picker.value = names.includes(before) ? before : "";
    if (isFirst || picker.value !== before) read(picker.value);
  };
  update();
  const forget = onChange(update);
  return () => { forget(); reading.abort(); };
}

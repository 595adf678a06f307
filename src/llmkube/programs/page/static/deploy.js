// Deploy: a model of the catalog, or a file; first whether it fits, by the numbers of `llmkube fit`.

import { act } from "./access.js";
import { bytes, h, notify, share } from "./dom.js";
import { state } from "./feed.js";

function verdict(fit) {
  const needs = bytes(fit.totalBytes);
  if (!fit.fits) return ["failing", `Does not fit: it needs ${needs}, and the budget for engines is ${bytes(fit.budgetBytes)}.`];
  if (fit.totalBytes <= fit.freeBytes) return ["ready", `Fits now: it needs ${needs}, and ${bytes(fit.freeBytes)} are free.`];
  return ["waiting", `Fits, but not together with the loaded engines: it needs ${needs}, and ${bytes(Math.max(0, fit.freeBytes))} are free.
    It waits until idle engines are unloaded.`.replace(/\s+/g, " ")];
}

function shown(fit, service) {
  const [kind, text] = verdict(fit);
  const largest = fit.lines.find((each) => each.startsWith("Largest context")) ?? "No context fits.";
  return [
    h("p", { class: kind }, text),
    share(text, fit.totalBytes / fit.budgetBytes, fit.fits ? "f0" : "t-failed"),
    h("p", { class: "soft" }, `${bytes(fit.totalBytes)} of the budget of ${bytes(fit.budgetBytes)}, with a context of ${fit.context} tokens. ${largest}`),
    state.services[`default/${service}`] ? h("p", { class: "waiting" }, `default/${service} exists: Deploy changes it, and replaces its engine.`) : null,
    h("details", {}, h("summary", {}, "Details"), h("pre", {}, fit.lines.join("\n"))),
  ].filter(Boolean);
}

// The form, closed until it is opened.
export function deployForm() {
  const choice = h("select", { name: "choice" }, h("option", { value: "" }, "A file or an address"));
  const service = h("input", { name: "service", required: true, autocomplete: "off", spellcheck: "false" });
  const source = h("input", { name: "source", required: true, autocomplete: "off", spellcheck: "false",
    placeholder: "/models/x.gguf, ORG/REPO, hf://… or https://…" });
  const context = h("input", { name: "context", type: "number", min: 1, placeholder: "default" });
  const result = h("div", { role: "status" });
  const deploy = h("button", { type: "button", class: "main", disabled: true }, "Deploy");
  const check = h("button", { type: "submit" }, "Check the fit");
  const sourceField = h("label", {}, "File or address", source);
  const wanted = () => [service.value.trim(), { source: choice.value ? "" : source.value.trim(), contextSize: Number(context.value) || null }];
  const clear = () => { result.replaceChildren(); deploy.disabled = true; };
  const busy = async (button, run) => {
    button.disabled = true;
    try { await run(); } catch (error) { result.replaceChildren(h("p", { class: "failing why" }, error.message)); }
    button.disabled = false;
  };
  choice.addEventListener("change", () => {
    service.value = choice.value;
    service.readOnly = sourceField.hidden = Boolean(choice.value);
    source.required = !choice.value;
  });
  const form = h("form", {
    oninput: clear,
    onsubmit: (event) => {
      event.preventDefault();
      clear();
      result.append(h("p", { class: "soft" }, "Reading the header of the file"));
      busy(check, async () => {
        const [name, fields] = wanted();
        result.replaceChildren(...shown(await act("fit", name, fields), name));
        deploy.disabled = false;
      });
    },
  },
  h("label", {}, "Model", choice), sourceField, h("label", {}, "Name", service), h("label", {}, "Context in tokens", context),
  h("p", { class: "row" }, check, deploy), result);
  deploy.addEventListener("click", () => busy(deploy, async () => {
    notify((await act("deploy", ...wanted())).message);
    form.reset();
    choice.dispatchEvent(new Event("change"));
    clear();
  }).then(() => { deploy.disabled = !result.childElementCount; }));
  let isLoaded = false;
  return h("details", {
    class: "card",
    ontoggle: async (event) => {
      if (!event.target.open || event.target.classList.contains("card") === false || isLoaded) return;
      isLoaded = true;
      try {
        const { models } = await act("catalog", "");
        choice.append(h("optgroup", { label: "Catalog" }, models.map((each) => (
          h("option", { value: each.name }, `${each.name}: ${each.title}, ${bytes(each.sizeBytes)}`)))));
      } catch (error) { isLoaded = false; notify(error.message); }
    },
  }, h("summary", {}, "Deploy a model"), form);
}

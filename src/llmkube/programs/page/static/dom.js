// Create and update elements. Text is always set as text, never parsed as HTML: names, logs and answers are hostile.

const SVG = "http://www.w3.org/2000/svg";
const SVG_NAMES = new Set(["svg", "rect", "path", "line", "title"]);

// Return an element: h("button", {class: "main", onclick: run}, "Send").
export function h(name, attributes = {}, ...children) {
  const element = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export function bytes(size) {
  if (size === null || size === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (Math.abs(size) >= 1024 && step < units.length - 1) { size /= 1024; step += 1; }
  return `${size.toFixed(step ? 1 : 0)} ${units[step]}`;
}

export function seconds(value) {
  if (value < 90) return `${Math.round(value)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return `${Math.round(value / 3600)} h`;
}

let hide = 0;

// Show a message for some seconds; screen readers read it.
export function notify(text) {
  const box = document.getElementById("notice");
  box.textContent = text;
  box.hidden = false;
  clearTimeout(hide);
  hide = setTimeout(() => { box.hidden = true; }, 8000);
}

// A bar that is filled up to `part` of 1; `label` says the same in words.
export function share(label, part, kind = "f0") {
  return h("svg", { class: "share", viewBox: "0 0 1000 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    h("rect", { x: 0, y: 0, width: 1000 * Math.min(1, Math.max(0, part)), height: 8, class: kind }));
}

// A text with the command that opens this page with its token.
export const ownerOnly = (text) => h("p", { class: "soft" }, "Only the owner of this machine can ", text, ": run ",
  h("code", {}, "llmkube page"), " in a terminal, which opens this page with that right.");

const SLICE = 6; // milliseconds of drawing, after which the browser may react to the user

// Keep one element for each item: an item that has not changed is not drawn again. Many are drawn in slices.
export class Keyed {
  constructor(parent, draw, drawn = () => {}) {
    this.parent = parent;
    this.draw = draw;
    this.drawn = drawn;
    this.shown = new Map();
    this.later = 0;
  }

  update(items) {
    clearTimeout(this.later);
    const until = performance.now() + SLICE;
    const names = new Set(items.map(([name]) => name));
    for (const [name, [, element]] of this.shown) {
      if (!names.has(name)) { element.remove(); this.shown.delete(name); }
    }
    let place = this.parent.firstElementChild;
    for (const [name, item] of items) {
      let [before, element] = this.shown.get(name) ?? [null, null];
      if (before !== item) {
        if (performance.now() > until) {
          this.later = setTimeout(() => { if (this.parent.isConnected) this.update(items); });
          break;
        }
        const fresh = this.draw(item, name);
        const focused = element?.contains(document.activeElement) ? document.activeElement.dataset.action : null;
        if (element) { if (place === element) place = fresh; element.replaceWith(fresh); }
        if (focused) fresh.querySelector(`[data-action="${focused}"]`)?.focus();
        element = fresh;
        this.shown.set(name, [item, element]);
      }
      if (place === element) place = place.nextElementSibling;
      else this.parent.insertBefore(element, place);
    }
    this.drawn();
  }
}

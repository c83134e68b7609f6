// Elements, and numbers as text.

export const byId = (id) => document.getElementById(id);

/** Returns an element. Properties named on... are listeners; all others are properties or attributes of the element. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Sets the text of an element, if it is another one: the player does this in each frame. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Returns a number with three significant digits, and one after the point at least. */
export function formatNumber(value, digits = 3) {
  if (!Number.isFinite(value)) return "NaN";
  const size = Math.abs(value);
  const isExponential = size >= 1e6 || (size < 1e-3 && size > 0);
  const text = isExponential
    ? value.toExponential(1).replace(".0e", "e").replace("e+", "e")
    : String(Number(value.toPrecision(Math.max(digits, Math.floor(Math.log10(size || 1)) + 2))));
  return text.replaceAll("-", "−");
}

/** Makes moves of the pointer with a button down on an element move the clock. */
export function addScrubbing(element, clock) {
  const report = ({ clientX }) => {
    const { left, width } = element.getBoundingClientRect();
    const padding = parseFloat(getComputedStyle(element).paddingLeft);
    clock.toggle(false);
    clock.setFrame((clock.last * (clientX - left - padding)) / (width - 2 * padding));
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || event.target.closest("button")) return;
    element.setPointerCapture(event.pointerId);
    report(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (element.hasPointerCapture(event.pointerId)) report(event);
  });
}

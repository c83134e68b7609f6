// Elements, numbers as text, and canvases that are sharp on every screen.

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

export const byId = (id) => document.getElementById(id);

/** Sets the text of an element, if it is another one: players do this in each frame. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Returns a number with three significant digits. */
export function formatNumber(value) {
  if (!Number.isFinite(value)) return "NaN";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value).replace("-", "−");
  const text = size >= 1e6 || size < 1e-3 ? value.toExponential(1) : size >= 100 ? value.toFixed(1) : value.toPrecision(3);
  return text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "").replace(/\.0e/, "e").replace("e+", "e").replace(/-/g, "−");
}

export const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** Gives a canvas as many pixels as it takes on the screen, and returns its context in CSS pixels, cleared. */
export function prepareCanvas(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [columns, rows] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const context = canvas.getContext("2d");
  context.setTransform(columns / width, 0, 0, rows / height, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Curves over frames with a cursor at the current frame. A click or a drag moves the clock.

import { addScrubbing, el, formatNumber, setText } from "./dom.js";

const [WIDTH, HEIGHT] = [1000, 100]; // of the drawing, which the page stretches
const LABEL_GAP = 20; // in the same units: labels that are nearer to others are left out

/** Returns the lowest and the highest finite number of arrays, extended to 0 if that is not far, and never equal. */
export function rangeOf(arrays) {
  let [low, high] = [Infinity, -Infinity];
  for (const values of arrays) {
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!Number.isFinite(high - low)) return [0, 1];
  if (low > 0 && low < high - low) low = 0;
  if (high < 0 && -high < high - low) high = 0;
  const margin = low === high ? Math.abs(low) / 2 || 1 : 0;
  return [low - margin, high + margin];
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export class Chart {
  /** `series` has {name, values, colour} for each curve, with a value for each frame. `range` is shared, or computed. */
  constructor({ title, series, clock, range = rangeOf(series.map(({ values }) => values)) }) {
    Object.assign(this, { series, clock, range });
    this.cursor = el("div", { className: "cursor" });
    this.values = series.map(() => el("output", { className: "value" }));
    const legend = series.map(({ name }, k) => {
      const key = svg("svg", { class: "key", viewBox: "0 0 16 8" }, this.curve(k, "M0 4H16"));
      return el("span", { className: "series" }, ...(name ? [key, name] : []), this.values[k]);
    });
    const curves = series.map(({ values }, k) => this.curve(k, this.path(values)));
    const attributes = { class: "curves", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" };
    const plot = el("div", { className: "plot" }, svg("svg", attributes, ...curves), this.cursor);
    plot.prepend(...this.rules());
    addScrubbing(plot, clock);
    this.node = el("figure", { className: "chart" }, el("figcaption", {}, el("b", {}, title), ...legend), plot);
  }

  y(value) {
    const [low, high] = this.range;
    return (HEIGHT * (high - value)) / (high - low);
  }

  curve(k, d) {
    const path = svg("path", { class: `curve dash-${k % 4}`, d });
    path.style.setProperty("--colour", this.series[k].colour);
    return path;
  }

  /** Returns lines at the ends of the range and at 0, with their numbers. */
  rules() {
    const [low, high] = this.range;
    const isFar = (value) => [low, high].every((end) => Math.abs(this.y(value) - this.y(end)) > LABEL_GAP);
    const digits = Math.min(3 + Math.floor(Math.log10(Math.max(-low, high) / (high - low))), 6);
    return [...new Set([low, high, low < 0 && high > 0 && isFar(0) ? 0 : low])].map((value) => {
      const rule = el("div", { className: "rule" }, el("span", {}, formatNumber(value, digits)));
      rule.style.top = `${this.y(value)}%`;
      return rule;
    });
  }

  /** Returns the path of a curve, with gaps where numbers are not finite. A number between two gaps is a dot. */
  path(values) {
    let [path, isGap] = ["", true];
    values.forEach((value, t) => {
      const point = `${(WIDTH * this.clock.shareOf(t)).toFixed(1)} ${this.y(value).toFixed(2)}`;
      if (Number.isFinite(value)) path += isGap ? `M${point}h.1` : `L${point}`;
      isGap = !Number.isFinite(value);
    });
    return path;
  }

  /** Shows a frame: moves the cursor, and writes the numbers of the frame. */
  draw(frame) {
    this.cursor.style.transform = `translateX(${100 * this.clock.shareOf(frame)}%)`;
    this.series.forEach(({ values }, k) => {
      const value = values[Math.min(frame, values.length - 1)];
      const isMissing = !Number.isFinite(value) && (frame === 0 || frame >= values.length - 1);
      setText(this.values[k], isMissing ? "–" : formatNumber(value));
    });
  }
}

// Curves over frames with a cursor at the current frame. A click or a drag moves the clock.

import { el, formatNumber, prepareCanvas, setText } from "./dom.js";
import { cssColour, curveColour, DASHES } from "./theme.js";

const MARGIN = { left: 46, right: 6, top: 7, bottom: 7 }; // CSS pixels

/** Returns the lowest and the highest finite number of arrays, extended to 0 if that is not far, and never equal. */
export function rangeOf(arrays) {
  let [low, high] = [Infinity, -Infinity];
  for (const values of arrays) {
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!(low <= high) || low === -Infinity || high === Infinity) return [0, 1];
  if (low > 0 && low < high - low) low = 0;
  if (high < 0 && -high < high - low) high = 0;
  if (low === high) return low === 0 ? [-1, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  return [low, high];
}

/** Makes moves of the pointer with a button down on an element call `onmove` with the share of its width, from 0 to 1. */
export function onScrub(element, onmove, [left, right] = [0, 0]) {
  const report = (event) => {
    const box = element.getBoundingClientRect();
    onmove(Math.min(Math.max((event.clientX - box.left - left) / (box.width - left - right), 0), 1));
  };
  element.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    element.setPointerCapture(event.pointerId);
    report(event);
  });
  element.addEventListener("pointermove", (event) => {
    if (element.hasPointerCapture(event.pointerId)) report(event);
  });
}

export class Chart {
  /**
   * `series` has {name, values, colour} for each curve, where `colour` is the number of a colour and `values` are those of
   * frames; `colours` are used instead of those of the theme; `range` is shared with other charts, or computed.
   */
  constructor({ title, series, clock, range, colours }) {
    Object.assign(this, { series, clock, colours, range: range ?? rangeOf(series.map(({ values }) => values)) });
    this.canvas = el("canvas");
    this.cursor = el("div", { className: "cursor" });
    this.plot = el("div", { className: "plot" }, this.canvas, this.cursor);
    this.values = series.map(() => el("output", { className: "value" }));
    this.keys = series.map(() => el("canvas", { className: "key" }));
    const legend = series.map(({ name }, k) =>
      el("span", { className: "series" }, ...(series.length > 1 || name ? [this.keys[k], el("span", {}, name)] : []), this.values[k]));
    this.node = el("figure", { className: "chart" }, el("figcaption", {}, el("b", {}, title), ...legend), this.plot);
    onScrub(this.plot, (share) => clock.setFrame(share * clock.last), [MARGIN.left, MARGIN.right]);
    this.observer = new ResizeObserver(() => this.drawCurves());
    this.observer.observe(this.plot);
  }

  x(frame) {
    return MARGIN.left + (frame / Math.max(this.clock.last, 1)) * (this.width - MARGIN.left - MARGIN.right);
  }

  y(value) {
    const [low, high] = this.range;
    return MARGIN.top + ((high - value) / (high - low)) * (this.height - MARGIN.top - MARGIN.bottom);
  }

  drawCurves() {
    [this.width, this.height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (!this.width || !this.height) return;
    const context = prepareCanvas(this.canvas, this.width, this.height);
    this.drawAxes(context);
    this.series.forEach((series, k) => {
      this.drawCurve(context, series, k);
      this.drawMissing(context, series.values);
      const key = prepareCanvas(this.keys[k], 16, 8);
      this.setStroke(key, series.colour, k);
      key.stroke(new Path2D("M0 4H16"));
    });
    this.draw(this.clock.frame);
  }

  drawAxes(context) {
    const [low, high] = this.range;
    context.font = `10.5px ${cssColour("font")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const rules = low < 0 && high > 0 ? [low, 0, high] : [low, high];
    for (const value of rules) {
      const y = Math.round(this.y(value)) + 0.5;
      context.fillStyle = cssColour("rule");
      context.fillRect(MARGIN.left, y - 0.5, this.width - MARGIN.left - MARGIN.right, 1);
      const isLegible = value !== 0 || rules.length < 3 || Math.min(y - this.y(high), this.y(low) - y) > 11;
      context.fillStyle = cssColour("muted");
      if (isLegible) context.fillText(formatNumber(Number(value.toPrecision(3))), MARGIN.left - 6, y);
    }
  }

  setStroke(context, colour, k) {
    context.strokeStyle = curveColour(colour, this.colours);
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.setLineDash(DASHES[k % DASHES.length]);
  }

  /** Draws a curve with gaps where numbers are not finite; a number between two gaps is a dot. */
  drawCurve(context, { values, colour }, k) {
    this.setStroke(context, colour, k);
    // Of more frames than there are pixels, the lowest and the highest of each pixel are drawn.
    const frames = Math.max(1, Math.floor(values.length / (2 * this.width)));
    let isGap = true;
    context.beginPath();
    for (let first = 0; first < values.length; first += frames) {
      let [low, high] = [Infinity, -Infinity];
      for (let t = first; t < Math.min(first + frames, values.length); t++) {
        if (values[t] < low) low = values[t];
        if (values[t] > high) high = values[t];
      }
      const isMissing = low > high;
      if (!isMissing) {
        const x = this.x(first);
        if (isGap) context.moveTo(x, this.y(low));
        context.lineTo(x + (isGap ? 0.5 : 0), this.y(low));
        if (high !== low) context.lineTo(x, this.y(high));
      }
      isGap = isMissing;
    }
    context.stroke();
  }

  /** Marks frames whose number is not finite. The first and the last frame may have none. */
  drawMissing(context, values) {
    context.fillStyle = cssColour("warning");
    for (let t = 1; t < values.length - 1; t++) {
      if (!Number.isFinite(values[t])) context.fillRect(this.x(t) - 1, this.height - MARGIN.bottom - 1, 2, 6);
    }
  }

  /** Shows a frame: moves the cursor, and writes the numbers of the frame. */
  draw(frame) {
    if (!this.width) return;
    this.cursor.style.transform = `translateX(${this.x(frame)}px)`;
    this.series.forEach(({ values }, k) => {
      const value = values[Math.min(frame, values.length - 1)];
      const isMissing = !Number.isFinite(value) && (frame === 0 || frame >= values.length - 1);
      setText(this.values[k], isMissing ? "–" : formatNumber(value));
    });
  }

  remove() {
    this.observer.disconnect();
    this.node.remove();
  }
}

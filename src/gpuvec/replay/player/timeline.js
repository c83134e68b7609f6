// The time line: a track for scrubbing, and a lane for each scene with a symbol for each event.

import { onScrub } from "./chart.js";
import { el, prepareCanvas } from "./dom.js";
import { cssColour, curveColour } from "./theme.js";

/** Name, colour and path of a symbol of 10 x 10 pixels around (0, 0), by the kind of an event. */
export const EVENT_KINDS = {
  tag: { name: "tag", colour: 0, path: "M-4.5 -3.5H4.5L0 4.5Z" },
  exit: { name: "exit", colour: 1, path: "M-3.6 -3.6H3.6V3.6H-3.6Z" },
  end: { name: "end of the episode", colour: null, path: "M-1.5 -5H1.5V5H-1.5Z" },
  td_error: { name: "largest TD error", colour: 4, path: "M0 -5.2L5.2 0L0 5.2L-5.2 0Z" },
  not_finite: { name: "first number that is not finite", colour: 3, path: "M-4.6 -2.8L-2.8 -4.6L0 -1.8L2.8 -4.6L4.6 -2.8L1.8 0L4.6 2.8L2.8 4.6L0 1.8L-2.8 4.6L-4.6 2.8L-1.8 0Z" },
  other: { name: "event", colour: 2, path: "M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0Z" },
};
export const kindOf = (event) => EVENT_KINDS[event.kind] ?? EVENT_KINDS.other;

const TRACK_HEIGHT = 14;
const TRACK_MARGIN = 9;
const HIT_RADIUS = 8;
const MAX_TOOLTIP_LINES = 4;

export function drawEventSymbol(context, event, x, y) {
  const { colour, path } = kindOf(event);
  context.save();
  context.translate(x, y);
  context.fillStyle = colour === null ? cssColour("text") : curveColour(colour);
  context.fill(new Path2D(path));
  context.restore();
}

export class Timeline {
  /** `onjump` is called with an event that was clicked. */
  constructor(node, scenes, clock, onjump) {
    Object.assign(this, { node, scenes, clock, onjump });
    this.scenesWithEvents = scenes.filter((scene) => scene.events.length);
    this.laneHeight = this.scenesWithEvents.length > 4 ? 12 : 16;
    this.labelWidth = scenes.length > 1 && this.scenesWithEvents.length ? 16 : 0;
    this.canvas = el("canvas");
    this.head = el("div", { className: "head" });
    this.tooltip = el("div", { className: "tooltip", role: "tooltip", hidden: true });
    node.append(this.canvas, this.head, this.tooltip);
    node.style.height = `${TRACK_HEIGHT + 4 + this.laneHeight * this.scenesWithEvents.length + 2}px`;
    this.addListeners();
    new ResizeObserver(() => this.drawTrack()).observe(node);
  }

  addListeners() {
    const { node, clock } = this;
    const scrub = (share) => {
      // A press on an event jumps to its frame; the moves that follow it scrub.
      if (this.pressed) return;
      clock.pause();
      clock.setFrame(share * clock.last);
    };
    node.addEventListener("pointerdown", (event) => {
      [this.pressed] = this.eventsAt(event);
      if (this.pressed) this.onjump(this.pressed);
    });
    onScrub(node, scrub, [TRACK_MARGIN + this.labelWidth, TRACK_MARGIN]);
    node.addEventListener("pointermove", (event) => this.showTooltip(this.eventsAt(event)));
    for (const name of ["pointerup", "pointercancel"]) node.addEventListener(name, () => (this.pressed = null));
    node.addEventListener("pointerleave", () => this.showTooltip([]));
  }

  x(frame) {
    const left = TRACK_MARGIN + this.labelWidth;
    return left + (frame / Math.max(this.clock.last, 1)) * (this.node.clientWidth - left - TRACK_MARGIN);
  }

  laneY(scene) {
    return TRACK_HEIGHT + 4 + this.laneHeight * (this.scenesWithEvents.indexOf(scene) + 0.5);
  }

  /** Returns the events at a position of the pointer, the nearest first. */
  eventsAt(pointer) {
    const box = this.node.getBoundingClientRect();
    const [x, y] = [pointer.clientX - box.left, pointer.clientY - box.top];
    const scene = this.scenesWithEvents[Math.floor((y - TRACK_HEIGHT - 4) / this.laneHeight)];
    if (y < TRACK_HEIGHT + 4 || !scene) return [];
    const distance = (event) => Math.abs(this.x(event.frame) - x);
    return scene.events.filter((event) => distance(event) < HIT_RADIUS).sort((a, b) => distance(a) - distance(b));
  }

  showTooltip(events) {
    this.tooltip.hidden = !events.length;
    this.node.style.cursor = events.length ? "pointer" : "";
    if (!events.length) return;
    const lines = events.slice(0, MAX_TOOLTIP_LINES).map(({ frame, text }) => el("div", {}, el("b", {}, `${frame}`), ` ${text}`));
    if (events.length > MAX_TOOLTIP_LINES) lines.push(el("div", {}, `and ${events.length - MAX_TOOLTIP_LINES} more`));
    this.tooltip.replaceChildren(...lines);
    const half = this.tooltip.offsetWidth / 2;
    const x = Math.min(Math.max(this.x(events[0].frame), half + 4), this.node.clientWidth - half - 4);
    this.tooltip.style.left = `${x}px`;
  }

  drawTrack() {
    const { node, clock } = this;
    if (!node.clientWidth) return;
    const context = prepareCanvas(this.canvas, node.clientWidth, node.clientHeight);
    context.fillStyle = cssColour("rule");
    context.beginPath();
    context.roundRect(this.x(0), TRACK_HEIGHT / 2 - 2, this.x(clock.last) - this.x(0), 4, 2);
    context.fill();
    context.font = `11px ${cssColour("font")}`;
    context.textBaseline = "middle";
    for (const scene of this.scenesWithEvents) {
      const y = this.laneY(scene);
      context.fillStyle = cssColour("muted");
      if (this.labelWidth) context.fillText(`${scene.index + 1}`, 4, y);
      context.fillStyle = cssColour("rule");
      context.fillRect(this.x(0), Math.floor(y), this.x(scene.numFrames - 1) - this.x(0), 1);
      for (const event of scene.events) drawEventSymbol(context, event, this.x(event.frame), y);
    }
    this.draw(clock.frame);
  }

  /** Shows a frame. */
  draw(frame) {
    const { node, clock } = this;
    this.head.style.transform = `translateX(${this.x(frame)}px)`;
    node.setAttribute("aria-valuemax", clock.last);
    node.setAttribute("aria-valuenow", frame);
    node.setAttribute("aria-valuetext", `frame ${frame} of ${clock.last}`);
  }
}

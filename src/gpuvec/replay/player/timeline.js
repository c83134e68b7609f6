// The time line: a track for scrubbing, and a lane for each scene with a mark for each event.

import { addScrubbing, el } from "./dom.js";

/** Returns the symbol of an event. The style sheet has those of known kinds. */
export function eventSymbol({ kind }) {
  return el("i", { className: "symbol", title: kind.replaceAll("_", " "), "data-kind": kind });
}

/** Whether an event has a mark of its own: the end of an episode has none where another event says how it ended. */
function isMarked({ kind, frame }, _, events) {
  return kind !== "end" || events.every((event) => ["end", "td_error"].includes(event.kind) || event.frame !== frame);
}

export class Timeline {
  /** `onjump` is called with an event that was clicked. */
  constructor(node, scenes, clock, onjump) {
    Object.assign(this, { node, clock });
    this.head = el("div", { className: "head" });
    const track = el("div", { className: "track" });
    const withEvents = scenes.filter(({ events }) => events.length);
    const lanes = withEvents.map(({ events, index }) => {
      const number = scenes.length > 1 ? [el("span", { className: "lane-number" }, `${index + 1}`)] : [];
      return el("div", { className: "lane" }, ...number, ...events.filter(isMarked).map((event) => this.mark(event, onjump)));
    });
    node.classList.toggle("numbered", scenes.length > 1);
    node.append(track, ...lanes, this.head);
    node.setAttribute("aria-valuemax", clock.last);
    addScrubbing(track, clock);
  }

  /** Returns a button at the frame of an event. Its text is to its left in the second half of the time. */
  mark(event, onjump) {
    const share = this.clock.shareOf(event.frame);
    const text = el("span", { className: "tooltip" }, el("b", {}, `${event.frame}`), ` ${event.text}`);
    const className = share > 0.5 ? "mark late" : "mark";
    const mark = el("button", { className, tabIndex: -1, onclick: () => onjump(event) }, eventSymbol(event), text);
    mark.style.left = `${100 * share}%`;
    return mark;
  }

  /** Shows a frame. */
  draw(frame) {
    this.head.style.transform = `translateX(${100 * this.clock.shareOf(frame)}%)`;
    this.node.setAttribute("aria-valuenow", frame);
    this.node.setAttribute("aria-valuetext", `frame ${frame} of ${this.clock.last}`);
  }
}

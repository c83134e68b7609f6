// The side panel: everything that the replay knows of one agent, at the current frame and over time.

import { Chart } from "./chart.js";
import { el, formatNumber, setText } from "./dom.js";

const MAX_FEATURES = 128;

/** A list of numbers as bars from 0, in the same order at each frame. */
class BarList {
  constructor(names, isSigned) {
    this.isSigned = isSigned;
    this.rows = names.map((name) => {
      const bar = el("i");
      const value = el("output");
      const row = el("li", {}, el("span", { className: "name", title: name }, name), el("span", { className: "bar" }, bar), value);
      return { bar, value, row };
    });
    this.node = el("ol", { className: isSigned ? "bars signed" : "bars" }, ...this.rows.map(({ row }) => row));
  }

  /** Shows numbers; a full bar is `scales[i]`. `chosen` has the indices of the rows that are marked. */
  draw(values, scales, chosen = []) {
    this.rows.forEach(({ bar, value, row }, i) => {
      const share = Number.isFinite(values[i]) && scales[i] > 0 ? Math.min(Math.max(values[i] / scales[i], -1), 1) : 0;
      bar.style.transform = `scaleX(${share})`;
      setText(value, formatNumber(values[i]));
      row.classList.toggle("chosen", chosen.includes(i));
      row.classList.toggle("not-finite", !Number.isFinite(values[i]));
    });
  }
}

const section = (title, ...children) => el("section", {}, el("h3", {}, title), ...children);

/** Returns the largest absolute value of each of the first features over all steps, at least 1e-9. */
function scalesOf(scene, agent, count) {
  const scales = new Float64Array(count).fill(1e-9);
  for (let step = 0; step < scene.numFrames - 1; step++) {
    scene.detail("observation", agent, step).slice(0, count).forEach((value, i) => {
      if (Math.abs(value) > scales[i]) scales[i] = Math.abs(value);
    });
  }
  return scales;
}

export class Inspector {
  /** `onselect` is called with an agent of the scene, or with null to close the panel. */
  constructor(node, clock, onselect) {
    Object.assign(this, { node, clock, onselect, charts: [], parts: [] });
  }

  /** Shows an agent of a scene. */
  show(scene, agent) {
    this.clear();
    Object.assign(this, { scene, agent });
    this.node.replaceChildren(this.header(), this.numbers(), ...this.sections());
    this.node.hidden = false;
    this.node.scrollTop = 0;
    this.draw(this.clock.frame);
  }

  clear() {
    this.charts.forEach((chart) => chart.remove());
    Object.assign(this, { charts: [], parts: [], scene: null });
    this.node.hidden = true;
  }

  /** Shows a frame. */
  draw(frame) {
    if (!this.scene) return;
    const step = this.scene.clamp(frame);
    this.parts.forEach((draw) => draw(step));
    this.charts.forEach((chart) => chart.draw(frame));
  }

  header() {
    const { scene, agent } = this;
    const name = el("h2");
    const about = el("p", { className: "muted" });
    this.parts.push((frame) => {
      setText(name, scene.nameOf(agent, frame));
      setText(about, `Scene ${scene.index + 1}: ${scene.header.title}${scene.isActive(agent, frame) ? "" : " · inactive"}`);
    });
    const move = (by) => () => this.onselect((agent + by + scene.numAgents) % scene.numAgents);
    const buttons = scene.numAgents > 1
      ? [el("button", { className: "plain", title: "Previous agent", onclick: move(-1) }, "‹"), el("button", { className: "plain", title: "Next agent", onclick: move(1) }, "›")]
      : [];
    const close = el("button", { className: "plain", title: "Close (Escape)", onclick: () => this.onselect(null) }, "×");
    return el("header", {}, el("div", {}, name, about), el("div", { className: "buttons" }, ...buttons, close));
  }

  numbers() {
    const { scene, agent } = this;
    const rewards = scene.rewardsOf(agent);
    let sum = 0;
    this.returns = rewards.map((reward, t) => (t ? (sum += reward) : 0));
    this.rewards = rewards;
    const rows = [["Reward", (t) => (t ? rewards[t] : null)], ["Return so far", (t) => this.returns[t]]];
    for (const [label, name] of [["Value", "value"], ["TD error", "td_error"]]) {
      if (scene.detail(name, agent, 0)) rows.push([label, (t) => scene.detail(name, agent, t)?.[0]]);
    }
    return el("dl", { className: "numbers" }, ...rows.map(([label, read]) => {
      const value = el("dd");
      this.parts.push((frame) => {
        const number = read(frame);
        setText(value, number === null || number === undefined ? "–" : formatNumber(number));
      });
      return el("div", {}, el("dt", {}, label), value);
    }));
  }

  sections() {
    const { scene, agent } = this;
    const hasDetails = scene.details?.agents.includes(agent);
    const parts = hasDetails
      ? [this.actionSection(), this.observationSection(), this.neighborSection()].filter(Boolean)
      : [el("p", { className: "note" }, this.missingDetails()), this.actionSection()].filter(Boolean);
    return [...parts.slice(0, 1), this.chartSection(), ...parts.slice(1)];
  }

  missingDetails() {
    const { agents = [] } = this.scene.details ?? {};
    if (!agents.length) return "This replay has no details (observation, action probabilities, value) of its agents.";
    const list = agents.length > 8 ? `${agents.slice(0, 8).join(", ")} and ${agents.length - 8} more` : agents.join(", ");
    return `This replay has no details of this agent, but of ${agents.length > 1 ? "agents" : "agent"} ${list}.`;
  }

  chartSection() {
    const { scene, agent, clock } = this;
    const curves = [["Reward", this.rewards, 0], ["Return", this.returns, 1]];
    for (const [label, name, colour] of [["Value", "value", 2], ["TD error", "td_error", 4]]) {
      const values = scene.detailCurve(name, agent);
      if (values) curves.push([label, values, colour]);
    }
    this.charts = curves.map(([title, values, colour]) => new Chart({ title, clock, series: [{ name: "", values, colour }] }));
    return section("Over time", ...this.charts.map((chart) => chart.node));
  }

  actionSection() {
    const { scene, agent } = this;
    const read = (frame) => scene.actionOf(agent, frame);
    const probabilities = scene.detail("probabilities", agent, 0);
    if (!read(0) && !probabilities) return null;
    // Probabilities and names are those of all components of the action, one component after the other.
    const sizes = scene.details?.action_sizes ?? [probabilities?.length ?? 0];
    const offsets = sizes.map((_, k) => sizes.slice(0, k).reduce((a, b) => a + b, 0));
    const names = scene.details?.action_names ?? scene.details?.actions;
    const rowsOf = (action) => (action?.length === sizes.length ? [...action].map((a, k) => offsets[k] + a) : []);
    const title = el("p", { className: "muted" });
    this.parts.push((frame) => {
      const action = read(frame);
      const rows = rowsOf(action);
      const words = action && [...action].map((a, k) => names?.[rows[k]] ?? formatNumber(a)).join(", ");
      setText(title, action ? `Taken: ${words}` : "No action follows this frame.");
    });
    if (!probabilities) return section("Action", title);
    const labels = sizes.flatMap((size, k) => Array.from({ length: size }, (_, i) => (sizes.length > 1 ? `${k}: ${i}` : `action ${i}`)));
    const bars = new BarList(labels.map((label, i) => names?.[i] ?? label), false);
    this.parts.push((frame) => {
      const values = scene.detail("probabilities", agent, frame);
      bars.node.classList.toggle("missing", !values);
      if (values) bars.draw(values, values.map(() => 1), rowsOf(read(frame)));
    });
    return section("Action probabilities", title, bars.node);
  }

  observationSection() {
    const { scene, agent } = this;
    const observation = scene.detail("observation", agent, 0);
    if (!observation) return null;
    const count = Math.min(observation.length, MAX_FEATURES);
    const names = Array.from({ length: count }, (_, i) => scene.details.features?.[i] ?? `feature ${i}`);
    const bars = new BarList(names, true);
    const scales = scalesOf(scene, agent, count);
    this.parts.push((frame) => {
      const values = scene.detail("observation", agent, frame);
      bars.node.classList.toggle("missing", !values);
      if (values) bars.draw(values, scales);
    });
    const rest = observation.length - count;
    const note = rest ? [el("p", { className: "muted" }, `The first ${count} of ${observation.length.toLocaleString("en")} features.`)] : [];
    return section("Observation", bars.node, ...note);
  }

  neighborSection() {
    const { scene, agent } = this;
    if (!scene.detail("neighbors", agent, 0)) return null;
    const list = el("ol", { className: "neighbors" });
    let shown = "";
    this.parts.push((frame) => {
      const neighbors = [...(scene.detail("neighbors", agent, frame) ?? [])];
      const key = `${neighbors}`;
      if (key === shown) return;
      shown = key;
      list.replaceChildren(...neighbors.map((other) => el("li", {}, other < 0
        ? el("span", { className: "muted" }, "none")
        : el("button", { className: "chip", onclick: () => this.onselect(other) }, scene.nameOf(other, frame)))));
    });
    return section("Neighbour slots", list);
  }
}

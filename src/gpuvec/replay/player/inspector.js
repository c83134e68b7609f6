// The side panel: everything that the replay knows of one agent, at the current frame and over time.

import { Chart } from "./chart.js";
import { el, formatNumber, setText } from "./dom.js";
import { COLOURS } from "./theme.js";

/** A list of numbers as bars from 0, in the same order at each frame. */
class BarList {
  constructor(names, isSigned) {
    this.rows = names.map((name) => {
      const [bar, value] = [el("i"), el("output")];
      const label = el("span", { className: "name", title: name }, name);
      return { bar, value, node: el("li", {}, label, el("span", { className: "bar" }, bar), value) };
    });
    this.node = el("ol", { className: isSigned ? "bars signed" : "bars" }, ...this.rows.map(({ node }) => node));
  }

  /** Shows numbers, null for none; a full bar is `scales[i]`. `chosen` has the indices of the rows that are marked. */
  draw(values, scales, chosen = []) {
    this.node.classList.toggle("missing", !values);
    if (!values) return;
    this.rows.forEach(({ bar, value, node }, i) => {
      const isFinite = Number.isFinite(values[i]);
      bar.style.transform = `scaleX(${isFinite ? values[i] / scales[i] : 0})`;
      setText(value, formatNumber(values[i]));
      node.classList.toggle("chosen", chosen.includes(i));
      node.classList.toggle("not-finite", !isFinite);
    });
  }
}

const section = (title, ...children) => el("section", {}, el("h3", {}, title), ...children);

export class Inspector {
  /** `onselect` is called with an agent of the scene, or with null to close the panel. */
  constructor(node, clock, onselect) {
    Object.assign(this, { node, clock, onselect, parts: [] });
  }

  /** Shows an agent of a scene. */
  show(scene, agent) {
    Object.assign(this, { scene, agent, parts: [] }); // functions that show a frame
    this.node.replaceChildren(this.header(), this.numbers(), ...this.sections());
    this.node.hidden = false;
    this.node.scrollTop = 0;
  }

  close() {
    this.parts = [];
    this.node.hidden = true;
  }

  /** Shows a frame. */
  draw(frame) {
    this.parts.forEach((draw) => draw(this.scene.clamp(frame)));
  }

  header() {
    const { scene, agent } = this;
    const [name, about] = [el("h2"), el("p", { className: "muted" })];
    this.parts.push((frame) => {
      setText(name, scene.nameOf(agent, frame));
      setText(about, `${scene.title}${scene.isActive(agent, frame) ? "" : " · inactive"}`);
    });
    const button = (title, text, other) =>
      el("button", { className: "plain", title, onclick: () => this.onselect(other) }, text);
    const others = [
      button("Previous agent", "‹", (agent - 1 + scene.numAgents) % scene.numAgents),
      button("Next agent", "›", (agent + 1) % scene.numAgents),
    ];
    const buttons = [...(scene.numAgents > 1 ? others : []), button("Close (Escape)", "×", null)];
    return el("header", {}, el("div", {}, name, about), el("div", { className: "buttons" }, ...buttons));
  }

  /** Returns the numbers of the current frame, and their curves. */
  numbers() {
    const { scene, agent, clock } = this;
    const rewards = scene.rewardsOf(agent);
    let sum = 0;
    const returns = rewards.map((reward, t) => (t ? (sum += reward) : 0));
    const curves = [
      ["Reward", rewards], ["Return", returns], ["Value", scene.detailCurve("value", agent)],
      ["TD error", scene.detailCurve("td_error", agent)],
    ].filter(([, values]) => values);
    const charts = curves.map(([name, values], k) => {
      const chart = new Chart({ title: name, clock, series: [{ name: "", values, colour: COLOURS[[0, 1, 2, 4][k]] }] });
      this.parts.push((frame) => chart.draw(frame));
      return chart.node;
    });
    return section("Rewards and values", ...charts);
  }

  sections() {
    const { scene, agent } = this;
    if (scene.details.agents.includes(agent)) {
      return [this.actionSection(), this.observationSection(), this.neighborSection()].filter(Boolean);
    }
    return [el("p", { className: "note" }, this.missingDetails())];
  }

  missingDetails() {
    const { agents } = this.scene.details;
    if (!agents.length) return "This replay has no details (observation, action probabilities, value) of its agents.";
    const list = agents.length > 8 ? `${agents.slice(0, 8).join(", ")} and ${agents.length - 8} more` : agents.join(", ");
    return `This replay has details of agent ${list} alone.`;
  }

  actionSection() {
    const { scene, agent } = this;
    const probabilities = scene.detail("probabilities", agent, 0);
    if (!scene.detail("action", agent, 0) && !probabilities) return null;
    // Probabilities and names are those of all components of the action, one component after the other.
    const { action_sizes: sizes, action_names: names } = scene.details;
    const offsets = sizes?.map((_, k) => sizes.slice(0, k).reduce((a, b) => a + b, 0));
    const rowsOf = (action) => (sizes && action ? [...action].map((choice, k) => offsets[k] + choice) : []);
    const choice = (value, k) => names?.[offsets[k] + value] ?? formatNumber(value);
    const component = (value, k) => `${names?.[k] ?? ""} ${formatNumber(value)}`.trim();
    const words = (action) => Array.from(action, sizes ? choice : component);
    const title = el("p", { className: "muted" });
    const bars = probabilities && new BarList(Array.from(probabilities, (_, i) => names?.[i] ?? `action ${i}`), false);
    const ones = probabilities?.map(() => 1);
    this.parts.push((frame) => {
      const action = scene.detail("action", agent, frame);
      setText(title, action ? `Taken: ${words(action).join(", ")}` : "No action follows this frame.");
      bars?.draw(scene.detail("probabilities", agent, frame), ones, rowsOf(action));
    });
    return section(bars ? "Action probabilities" : "Action", title, ...(bars ? [bars.node] : []));
  }

  observationSection() {
    const { scene, agent } = this;
    const observation = scene.detail("observation", agent, 0);
    if (!observation) return null;
    const { features, num_features: numFeatures } = scene.details;
    const bars = new BarList(Array.from(observation, (_, i) => features?.[i] ?? `feature ${i}`), true);
    const scales = Array.from(scene.field(scene.details.exponents).data, (exponent) => 127 * 2 ** exponent);
    this.parts.push((frame) => bars.draw(scene.detail("observation", agent, frame), scales));
    const isPart = numFeatures > observation.length;
    const note = `The first ${observation.length} of ${numFeatures?.toLocaleString("en")} features.`;
    return section("Observation", bars.node, ...(isPart ? [el("p", { className: "muted" }, note)] : []));
  }

  neighborSection() {
    const { scene, agent } = this;
    if (!scene.detail("neighbors", agent, 0)) return null;
    const list = el("ol", { className: "neighbors" });
    let shown = "";
    const slot = (other, frame) => (other < 0
      ? el("span", { className: "muted" }, "none")
      : el("button", { className: "chip", onclick: () => this.onselect(other) }, scene.nameOf(other, frame)));
    this.parts.push((frame) => {
      const neighbors = [...(scene.detail("neighbors", agent, frame) ?? [])];
      if (`${neighbors}` === shown) return;
      shown = `${neighbors}`;
      list.replaceChildren(...neighbors.map((other) => el("li", {}, slot(other, frame))));
    });
    return section("Neighbour slots", list);
  }
}

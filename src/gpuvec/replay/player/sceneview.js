// A scene in the page: its picture, the legend of its agents, and its curves.

import { clearCanvas, drawSelection, drawSymbol, drawTrails, MANY_AGENTS, PathRenderer, symbolRadius } from "./agents.js";
import { Chart, rangeOf } from "./chart.js";
import { el, setText } from "./dom.js";
import { drawMarks, isConstant } from "./marks.js";
import { PointRenderer } from "./points.js";
import { SpriteRenderer } from "./sprites.js";
import { COLOURS, sceneColours } from "./theme.js";

const PICK_RADIUS = 16; // CSS pixels
const MAX_PIXEL_RATIO = 3;
const MAX_TRAIL_RADIUS = 6; // CSS pixels: trails are not as wide as large symbols
const MAX_ELEMENTS = 6; // curves of a field of the state; of more elements the mean is shown
const LEGEND_SIZE = 18; // CSS pixels

export class SceneView {
  /** `player` has the clock, the scenes, `showTrails`, `selection`, and `select(scene, agent)`. */
  constructor(scene, player) {
    Object.assign(this, { scene, player });
    this.node = el("article", { className: "scene" }, this.header());
    const [body, facts] = [el("div", { className: "body" }), el("div", { className: "facts" })];
    this.node.append(body);
    if (scene.hasPicture) body.append(this.stage());
    body.append(facts);
    if (scene.agents) facts.append(this.legend());
    // Without agents in the picture, a click anywhere shows the first agent with details.
    else this.node.addEventListener("click", () => player.select(scene.index, scene.details.agents[0] ?? 0));
    const state = Object.entries(scene.header.state ?? {}).map(([name, track]) => this.stateChart(name, scene.field(track)));
    this.charts = [this.rewardChart(), ...state];
    facts.append(...this.charts.map(({ node }) => node));
    this.setTheme();
  }

  header() {
    const { env, policy, seed, row } = this.scene.header;
    const number = (name, value) => ((value ?? null) === null ? null : `${name} ${value}`);
    const facts = [env, policy, number("seed", seed), number("row", row)];
    const about = facts.filter((fact) => fact && fact !== this.scene.title).join(" · ");
    this.badge = el("span", { className: "badge", hidden: true }, "ended");
    this.caption = el("span", { className: "caption" });
    this.button = el("button", { className: "plain enlarge", onclick: (event) => {
      event.stopPropagation();
      this.toggle();
    } });
    return el("header", {},
      el("span", { className: "number" }, `${this.scene.index + 1}`),
      el("div", { className: "title" }, el("h2", {}, this.scene.title), el("p", { className: "muted" }, about)),
      this.caption, this.badge, ...(this.player.scenes.length > 1 ? [this.button] : []));
  }

  /** Shows this scene alone, or all again. */
  toggle() {
    const { player, scene } = this;
    player.enlarge(player.enlarged === null ? scene.index : null);
  }

  /** Shows or hides the scene; `isAlone` says whether all others are hidden. */
  show(isVisible, isAlone) {
    this.node.hidden = !isVisible;
    this.button.textContent = isAlone ? "\u00d7" : "\u2922";
    this.button.title = isAlone ? "Show all scenes (Escape)" : "Show this scene alone";
    this.button.setAttribute("aria-label", this.button.title);
  }

  /** What decides how large the picture can be. */
  get shape() {
    const { width, height } = this.scene.header;
    return { aspect: width / height, hasLegend: Boolean(this.scene.agents) };
  }

  /** Returns the picture: three canvases, with the marks before the agents, with the agents, and with all above them. */
  stage() {
    const { scene } = this;
    const { width, height } = scene.header;
    this.canvases = ["below", "agents", "above"].map((className) => el("canvas", { className }));
    const label = `Picture of scene ${scene.index + 1}`;
    this.picture = el("div", { className: "stage", role: "img", "aria-label": label }, ...this.canvases);
    this.picture.style.setProperty("--aspect", width / height);
    new ResizeObserver(() => this.resize()).observe(this.picture);
    if (!scene.agents) {
      this.picture.addEventListener("click", () => this.toggle());
      return this.picture;
    }
    const [, canvas] = this.canvases;
    const isMany = scene.numAgents > MANY_AGENTS;
    this.renderer = isMany ? PointRenderer.create(canvas, scene) : new PathRenderer(canvas, scene);
    if (!this.renderer) this.drawWithoutWebGL();
    canvas.addEventListener("webglcontextlost", () => this.drawWithoutWebGL());
    this.picture.addEventListener("click", ({ offsetX, offsetY }) => {
      const agent = this.pick(offsetX, offsetY);
      if (agent === null && this.player.selection?.scene !== scene.index) this.toggle();
      else this.player.select(scene.index, agent);
    });
    this.picture.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      this.picture.style.cursor = this.pick(offsetX, offsetY) === null ? "" : "pointer";
    });
    return this.picture;
  }

  drawWithoutWebGL() {
    const canvas = el("canvas", { className: "agents" }); // A canvas that had a context of WebGL has no other.
    this.canvases[1].replaceWith(canvas);
    this.canvases[1] = canvas;
    this.renderer = new SpriteRenderer(canvas, this.scene);
    this.resize();
  }

  /** Gives all canvases as many pixels as they take on the screen. */
  resize() {
    const { scene, canvases, picture, colours } = this;
    if (!picture?.clientWidth) return;
    const ratio = Math.min(window.devicePixelRatio || 1, MAX_PIXEL_RATIO);
    const [width, height] = [picture.clientWidth, picture.clientHeight].map((size) => Math.round(size * ratio));
    canvases.forEach((canvas) => Object.assign(canvas, { width, height }));
    this.pixel = scene.header.width / picture.clientWidth; // The size of a CSS pixel in the picture.
    this.view = { scale: width / scene.header.width, radius: 0, colours };
    this.background = null;
    this.draw(this.player.clock.frame);
  }

  /** Returns the agent that is nearest to a position in CSS pixels, or null if none is near. */
  pick(left, top) {
    const { scene, pixel, view } = this;
    const frame = scene.clamp(this.player.clock.frame);
    const [xs, ys] = [scene.agents.x.row(frame), scene.agents.y.row(frame)];
    let [best, nearest] = [Math.max(PICK_RADIUS * pixel, view.radius), null];
    for (let agent = 0; agent < xs.length; agent++) {
      const distance = Math.hypot(xs[agent] - left * pixel, ys[agent] - top * pixel);
      if (distance < best) [best, nearest] = [distance, agent];
    }
    return nearest;
  }

  legend() {
    this.roles = this.scene.roleNames.map((name) => {
      const icon = el("canvas", { className: "icon", width: 2 * LEGEND_SIZE, height: 2 * LEGEND_SIZE });
      return { name, icon, count: el("output") };
    });
    const roles = this.roles.map(({ name, icon, count }) => el("span", {}, icon, name, " ", count));
    return el("div", { className: "legend" }, ...roles);
  }

  rewardChart() {
    const { scene, player } = this;
    const { roleColours: colours } = scene;
    const series = scene.rewardCurves().map((curve, k) => ({ ...curve, colour: colours[k % colours.length] }));
    const isMean = scene.numAgents > series.length;
    // Scenes of one environment have one range, so that their curves can be compared.
    const peers = player.scenes.filter(({ header }) => header.env === scene.header.env);
    const range = rangeOf(peers.flatMap((other) => other.rewardCurves().map(({ values }) => values)));
    return new Chart({ title: isMean ? "Mean reward" : "Reward", series, range, clock: player.clock });
  }

  stateChart(name, field) {
    const { scene, player: { clock } } = this;
    const curve = (read) => Float64Array.from({ length: scene.numFrames }, (_, t) => read(field.row(t)));
    const mean = (row) => row.reduce((sum, value) => sum + value, 0) / field.size;
    const isMean = field.size > MAX_ELEMENTS;
    const reads = isMean ? [mean] : Array.from({ length: field.size }, (_, i) => (row) => row[i]);
    const label = (i) => (isMean ? `mean of ${field.size}` : field.size > 1 ? `${i}` : "");
    const series = reads.map((read, i) => ({ name: label(i), values: curve(read), colour: COLOURS[(i + 1) % COLOURS.length] }));
    return new Chart({ title: name, series, clock });
  }

  /** Takes the colours of the current theme. */
  setTheme() {
    const { scene } = this;
    this.colours = sceneColours(scene);
    this.roles?.forEach(({ icon }, role) => {
      const context = icon.getContext("2d");
      context.clearRect(0, 0, icon.width, icon.height);
      drawSymbol(context, scene, role, { ...this.colours, paper: this.colours.outline }, true, LEGEND_SIZE, LEGEND_SIZE, 12, 0);
    });
    this.resize();
  }

  /** Shows a frame of the clock. */
  draw(time) {
    const { scene, player } = this;
    const frame = scene.clamp(time);
    this.badge.hidden = time < scene.numFrames - 1 || scene.numFrames === player.clock.numFrames;
    this.charts.forEach((chart) => chart.draw(time));
    setText(this.caption, this.lastEvent(frame)?.text ?? "");
    if (this.view) this.drawPicture(frame);
    this.drawCounts(frame);
  }

  /** Returns the last event up to a frame; the end of an episode is one only if nothing else says how it ended. */
  lastEvent(frame) {
    const past = this.scene.events.filter((event) => event.frame <= frame && event.kind !== "td_error");
    const [before, last] = [past.at(-2), past.at(-1)];
    return last?.kind === "end" && before?.frame === last.frame ? before : last;
  }

  drawPicture(frame) {
    const { scene, player, pixel, colours, renderer, canvases: [below, , above] } = this;
    const radius = scene.agents ? symbolRadius(scene, frame, pixel) : 0;
    // Renderers draw their images again for another view.
    if (radius !== this.view.radius) this.view = { ...this.view, radius };
    const { view } = this;
    const layout = scene.layoutOfFrame[frame];
    const hasTrails = player.showTrails && layout.hasAgents;
    const background = isConstant(scene, layout, layout.before) ? layout.layout : frame;
    if (hasTrails || background !== this.background) {
      const context = clearCanvas(below, view.scale);
      context.fillStyle = colours.paper;
      context.fillRect(0, 0, scene.header.width, scene.header.height);
      drawMarks(context, scene, layout, layout.before, colours, pixel);
      if (hasTrails) drawTrails(context, scene, frame, colours, Math.min(view.radius, MAX_TRAIL_RADIUS * pixel));
    }
    this.background = hasTrails ? null : background;
    if (renderer) renderer.canvas.hidden = !layout.hasAgents;
    if (layout.hasAgents) renderer.draw(frame, view);
    const selected = player.selection?.scene === scene.index ? player.selection.agent : null;
    const isEmpty = !layout.after.length && selected === null;
    if (isEmpty && this.isAboveEmpty) return;
    this.isAboveEmpty = isEmpty;
    const context = clearCanvas(above, view.scale);
    drawMarks(context, scene, layout, layout.after, colours, pixel);
    if (selected !== null) drawSelection(context, scene, frame, selected, colours, pixel);
  }

  /** Writes how many agents of each role are active. */
  drawCounts(frame) {
    if (!this.roles) return;
    const [roles, active] = [this.scene.agents.role.row(frame), this.scene.agents.active?.row(frame)];
    this.roles.forEach(({ count }, role) => {
      const total = roles.filter((other) => other === role).length;
      const left = roles.filter((other, agent) => other === role && active?.[agent]).length;
      setText(count, active ? `${left} / ${total}` : `${total}`);
    });
  }
}

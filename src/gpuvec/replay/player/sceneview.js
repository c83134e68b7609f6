// A scene in the page: its picture, the legend of its agents, and its curves.

import { drawAgents, drawSymbol, drawTrails, MANY_AGENTS, symbolRadius } from "./agents.js";
import { Chart, rangeOf } from "./chart.js";
import { el, plural, prepareCanvas, setText } from "./dom.js";
import { drawMarks } from "./picture.js";
import { PointRenderer } from "./points.js";
import { drawSelection } from "./selection.js";
import { makeSheet, SpriteRenderer } from "./sprites.js";
import { sceneColours } from "./theme.js";

const PICK_RADIUS = 16; // CSS pixels
const DOUBLE_CLICK_ZOOM = 3;
const MAX_ZOOM = 40;
const MAX_ELEMENTS = 6; // curves of a field of the state; of more elements the mean is shown

export class SceneView {
  /** `player` has the clock, `showTrails`, `selection`, and `select(scene, agent)`; `rewardRange` is that of all scenes of this env. */
  constructor(scene, player, rewardRange) {
    Object.assign(this, { scene, player, view: { zoom: 1, x: 0, y: 0 } });
    this.node = el("article", { className: "scene", onpointerdown: () => player.activate(scene.index) }, this.header());
    if (scene.hasPicture) this.node.append(this.stage(), this.legend());
    this.charts = [this.rewardChart(rewardRange)];
    const state = Object.entries(scene.header.state ?? {}).map(([name, track]) => this.stateChart(name, scene.field(track)));
    this.charts.push(...state);
    this.node.append(this.charts[0].node);
    const nodes = state.map(({ node }) => node);
    if (!scene.hasPicture) this.node.append(...nodes);
    else if (nodes.length) this.node.append(el("details", {}, el("summary", {}, `State: ${plural(nodes.length, "field")}`), ...nodes));
    this.setTheme();
  }

  header() {
    const { title, env, policy, seed, row } = this.scene.header;
    const isCommon = this.player.scenes.every(({ header }) => header.env === env);
    const facts = [isCommon ? null : env, policy, (seed ?? null) === null ? null : `seed ${seed}`, (row ?? null) === null ? null : `row ${row}`];
    this.badge = el("span", { className: "badge", hidden: true }, "ended");
    const agent = this.scene.hasPicture && this.scene.agents ? [] : [
      el("button", { className: "plain open", title: "Show rewards, actions and observations of an agent", onclick: () => this.player.select(this.scene.index, this.scene.details?.agents[0] ?? 0) }, "Details"),
    ];
    return el("header", {},
      el("span", { className: "number", title: `Press ${this.scene.index + 1} to choose this scene` }, `${this.scene.index + 1}`),
      el("div", { className: "title" }, el("h2", {}, title ?? env), el("p", { className: "muted" }, facts.filter((fact) => fact && fact !== title).join(" · "))),
      this.badge, ...agent,
      el("button", { className: "plain enlarge", title: "Enlarge or reduce this scene (f)", "aria-label": "Enlarge or reduce this scene", onclick: () => this.player.enlarge(this.scene.index) }, "⤢"));
  }

  stage() {
    const { scene } = this;
    const { width, height } = scene.header;
    this.below = el("canvas");
    this.canvases = el("div", { className: "stage", role: "img", "aria-label": `Picture of scene ${scene.index + 1}` }, this.below);
    this.canvases.style.setProperty("--aspect", width / height);
    if (scene.agents && scene.numAgents > MANY_AGENTS) this.addLayers();
    this.addPointerListeners();
    new ResizeObserver(() => this.draw(this.player.clock.frame)).observe(this.canvases);
    return this.canvases;
  }

  /** Adds a canvas for many agents, with WebGL if that is fast, and one above it for the marks after the agents. */
  addLayers() {
    const { scene } = this;
    // Roles of fewer agents are drawn over those of more.
    const roles = scene.agents.role.row(0);
    const counts = scene.roleNames.map((_, role) => roles.filter((other) => other === role).length);
    this.order = Uint32Array.from(roles.keys()).sort((a, b) => counts[roles[b]] - counts[roles[a]] || a - b);
    const canvas = el("canvas");
    this.points = PointRenderer.create(canvas, scene, this.order) ?? new SpriteRenderer(el("canvas"), scene, this.order);
    this.above = el("canvas");
    this.canvases.append(this.points.canvas, this.above);
    canvas.addEventListener("webglcontextlost", () => {
      this.points = new SpriteRenderer(el("canvas"), scene, this.order);
      canvas.replaceWith(this.points.canvas);
      this.draw(this.player.clock.frame);
    });
  }

  addPointerListeners() {
    let pressed = null;
    this.canvases.addEventListener("pointerdown", ({ offsetX, offsetY, pointerId }) => {
      pressed = { x: offsetX, y: offsetY, isDrag: false };
      if (this.view.zoom > 1) this.canvases.setPointerCapture(pointerId);
    });
    this.canvases.addEventListener("pointermove", ({ offsetX, offsetY, buttons }) => {
      if (!buttons && this.scene.agents) this.canvases.style.cursor = this.pick(offsetX, offsetY) === null ? "" : "pointer";
      if (!pressed || !buttons || this.view.zoom === 1) return;
      const [dx, dy] = [offsetX - pressed.x, offsetY - pressed.y];
      if (!pressed.isDrag && Math.hypot(dx, dy) < 5) return;
      pressed = { x: offsetX, y: offsetY, isDrag: true };
      this.setView(this.view.zoom, this.view.x + dx, this.view.y + dy);
    });
    this.canvases.addEventListener("click", ({ offsetX, offsetY }) => {
      if (pressed?.isDrag || !this.scene.agents) return;
      this.player.select(this.scene.index, this.pick(offsetX, offsetY));
    });
    this.canvases.addEventListener("dblclick", ({ offsetX, offsetY }) => this.zoomAt(offsetX, offsetY, this.view.zoom > 1 ? 1 : DOUBLE_CLICK_ZOOM));
    this.canvases.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      this.zoomAt(event.offsetX, event.offsetY, this.view.zoom * Math.exp(-event.deltaY / 100));
    }, { passive: false });
  }

  zoomAt(x, y, zoom) {
    const next = Math.min(Math.max(zoom, 1), MAX_ZOOM);
    const factor = next / this.view.zoom;
    this.setView(next, x - factor * (x - this.view.x), y - factor * (y - this.view.y));
  }

  setView(zoom, x, y) {
    const { clientWidth, clientHeight } = this.canvases;
    const clamp = (value, size) => Math.min(0, Math.max(value, size * (1 - zoom)));
    this.view = { zoom, x: clamp(x, clientWidth), y: clamp(y, clientHeight) };
    this.draw(this.player.clock.frame);
  }

  /** CSS pixels of a pixel of the picture. */
  get scale() {
    return (this.view.zoom * this.canvases.clientWidth) / this.scene.header.width;
  }

  /** Returns the agent that is nearest to a position in CSS pixels, or null if none is near. */
  pick(left, top) {
    const { scene, scale, view } = this;
    const frame = scene.clamp(this.player.clock.frame);
    let best = Math.max(PICK_RADIUS / scale, symbolRadius(scene, 1 / scale)) ** 2;
    let nearest = null;
    const [xs, ys] = [scene.agents.x.row(frame), scene.agents.y.row(frame)];
    const [x, y] = [(left - view.x) / scale, (top - view.y) / scale];
    for (let agent = 0; agent < xs.length; agent++) {
      const distance = (xs[agent] - x) ** 2 + (ys[agent] - y) ** 2;
      if (distance < best) [best, nearest] = [distance, agent];
    }
    return nearest;
  }

  legend() {
    const { scene } = this;
    if (!scene.agents) return "";
    this.roles = scene.roleNames.map(() => ({ icon: el("canvas", { className: "icon" }), count: el("output") }));
    return el("div", { className: "legend" }, ...this.roles.map(({ icon, count }, role) => el("span", {}, icon, scene.roleNames[role], " ", count)));
  }

  rewardChart(range) {
    const { scene, player } = this;
    const series = scene.meanRewards().map((values, role) => ({ name: scene.roleNames[role], values, colour: role }));
    const isMean = scene.numAgents > scene.roleNames.length;
    return new Chart({ title: isMean ? "Mean reward" : "Reward", series, range, clock: player.clock, colours: scene.header.agents?.colours });
  }

  stateChart(name, field) {
    const { scene, player } = this;
    const at = (t, element) => field.row(scene.clamp(t))[element];
    const curve = (read) => Float64Array.from({ length: scene.numFrames }, (_, t) => read(t));
    const mean = (t) => field.row(t).reduce((sum, value) => sum + value, 0) / field.size;
    const series = field.size > MAX_ELEMENTS
      ? [{ name: `mean of ${field.size.toLocaleString("en")}`, values: curve(mean), colour: 1 }]
      : Array.from({ length: field.size }, (_, i) => ({ name: field.size > 1 ? `${i}` : "", values: curve((t) => at(t, i)), colour: (i + 1) % MAX_ELEMENTS }));
    return new Chart({ title: name, series, clock: player.clock });
  }

  /** Takes the colours of the current theme. */
  setTheme() {
    const { scene } = this;
    this.colours = sceneColours(scene);
    this.roles?.forEach(({ icon }, role) => {
      const context = prepareCanvas(icon, 18, 18);
      drawSymbol(context, scene, role, { ...this.colours, paper: "transparent" }, true, 9, 9, 6, 0);
    });
    this.charts.forEach((chart) => chart.drawCurves());
    this.draw(this.player.clock.frame);
  }

  /** Shows a frame of the clock. */
  draw(time) {
    const { scene } = this;
    const frame = scene.clamp(time);
    this.badge.hidden = time < scene.numFrames - 1 || scene.numFrames === this.player.clock.numFrames;
    this.charts.forEach((chart) => chart.draw(time));
    if (!scene.hasPicture || !this.canvases.clientWidth) return;
    const { parts, row } = scene.layoutAt(frame);
    const pixel = 1 / this.scale;
    if (this.points) this.drawLayers(frame, parts, row, pixel);
    else {
      const context = this.prepare(this.below);
      this.drawBackground(context, parts, row, pixel);
      if (scene.agents && parts.hasAgents) {
        const radius = symbolRadius(scene, pixel);
        if (this.player.showTrails) drawTrails(context, scene, frame, this.colours, radius);
        drawAgents(context, scene, frame, this.colours, radius);
      }
      drawMarks(context, scene, parts.layout, parts.after, row, this.colours, pixel);
      this.drawSelection(context, frame, pixel);
    }
    this.drawCounts(frame);
  }

  /** Returns the context of a canvas, which is cleared and takes pixels of the picture. */
  prepare(canvas) {
    const context = prepareCanvas(canvas, this.canvases.clientWidth, this.canvases.clientHeight);
    context.translate(this.view.x, this.view.y);
    context.scale(this.scale, this.scale);
    return context;
  }

  /** Returns the scale and the offset from pixels of the picture to those of the canvas. */
  pixelView() {
    const ratio = this.below.width / this.canvases.clientWidth;
    return { scale: this.scale * ratio, x: this.view.x * ratio, y: this.view.y * ratio };
  }

  /** Returns the sprites of agents with a radius, in pixels of the picture. */
  sheetFor(radius) {
    const size = radius * this.pixelView().scale;
    if (this.sheet?.colours !== this.colours || this.sheet.radius !== size) this.sheet = makeSheet(this.scene, this.colours, size);
    return this.sheet;
  }

  drawBackground(context, parts, row, pixel) {
    context.fillStyle = this.colours.paper;
    context.fillRect(0, 0, this.scene.header.width, this.scene.header.height);
    drawMarks(context, this.scene, parts.layout, parts.before, row, this.colours, pixel);
  }

  /** Draws a frame on three canvases, of which one has the agents. The others are left as they are where possible. */
  drawLayers(frame, parts, row, pixel) {
    const { scene, points, view, colours } = this;
    const { clientWidth, clientHeight } = this.canvases;
    const isConstant = parts.before.every(({ mark }) => mark.kind !== "cells" || scene.field(mark.values).shape[0] === 1) &&
      [parts.layout.coordinates, parts.layout.colours].every((track) => scene.field(track).shape[0] === 1);
    const background = [parts.layout, isConstant ? 0 : row, colours, view, clientWidth, clientHeight];
    const radius = symbolRadius(scene, pixel);
    const hasTrails = this.player.showTrails && parts.hasAgents;
    if (hasTrails || !background.every((value, k) => value === this.background?.[k])) {
      const below = this.prepare(this.below);
      this.drawBackground(below, parts, row, pixel);
      if (hasTrails) drawTrails(below, scene, frame, colours, radius);
    }
    this.background = hasTrails ? null : background;
    const { width, height } = this.below;
    if (points.canvas.width !== width || points.canvas.height !== height) Object.assign(points.canvas, { width, height });
    if (parts.hasAgents) points.draw(frame, this.pixelView(), this.sheetFor(radius));
    const isEmpty = !parts.after.length && this.player.selection?.scene !== scene.index;
    if (!isEmpty || !this.isAboveEmpty) {
      const above = this.prepare(this.above);
      drawMarks(above, scene, parts.layout, parts.after, row, colours, pixel);
      this.drawSelection(above, frame, pixel);
    }
    this.isAboveEmpty = isEmpty;
  }

  drawSelection(context, frame, pixel) {
    const { selection } = this.player;
    if (selection?.scene === this.scene.index) drawSelection(context, this.scene, frame, selection.agent, this.colours, pixel);
  }

  /** Writes how many agents of each role are active. */
  drawCounts(frame) {
    if (!this.roles) return;
    const roles = this.scene.agents.role.row(frame);
    const active = this.scene.agents.active?.row(frame);
    const [counts, totals] = [this.roles.map(() => 0), this.roles.map(() => 0)];
    for (let agent = 0; agent < roles.length; agent++) {
      totals[roles[agent]] += 1;
      if (!active || active[agent]) counts[roles[agent]] += 1;
    }
    this.roles.forEach(({ count }, role) => setText(count, active ? `${counts[role]} / ${totals[role]}` : `${totals[role]}`));
  }
}

/** Returns the range of the mean rewards of all scenes of the environment of a scene, so that curves can be compared. */
export function sharedRewardRange(scene, scenes) {
  const others = scenes.filter(({ header }) => header.env === scene.header.env);
  return rangeOf(others.flatMap((other) => other.meanRewards()));
}

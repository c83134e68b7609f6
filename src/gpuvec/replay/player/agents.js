// Draws agents as paths of a 2D context, their trails, and what belongs to the selected agent.

const TRAIL_SEGMENTS = 20000; // of all agents in a frame
const MAX_TRAIL = 32; // frames
const SELECTED_TRAIL = 60; // frames
const MIN_RADIUS = 4; // CSS pixels
const MIN_RADIUS_OF_MANY = 1.6;
const MAX_OUTLINE = 3; // pixels of the picture
const RING_GAP = 5; // CSS pixels
const MAX_DENSITY = 0.5; // radii in the mean distance of agents
export const MANY_AGENTS = 2000;

/** Clears a canvas, and returns its context, which takes pixels of the picture. */
export function clearCanvas(canvas, scale) {
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, canvas.width, canvas.height);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}

/** Returns the radius of symbols of a frame in pixels of the picture; `pixel` is the size of a CSS pixel there. */
export function symbolRadius(scene, frame, pixel) {
  const { width, height } = scene.header;
  const largest = MAX_DENSITY * Math.sqrt((width * height) / scene.numAgents);
  const smallest = pixel * (scene.numAgents > MANY_AGENTS ? MIN_RADIUS_OF_MANY : MIN_RADIUS);
  return Math.max(Math.min(scene.radiusAt(frame), largest), smallest);
}

/** Draws a symbol: filled with an outline in the colour of the paper, or hollow and grey if it is inactive. */
export function drawSymbol(context, scene, role, colours, isActive, x, y, radius, heading) {
  const { symbols } = scene.header.agents;
  const [cos, sin] = [radius * Math.cos(heading), radius * Math.sin(heading)];
  context.beginPath();
  // The symbol's own y is upwards, as headings turn.
  for (const [u, v] of symbols[role]) context.lineTo(x + cos * u - sin * v, y - sin * u - cos * v);
  context.closePath();
  context.lineJoin = "round";
  // Half of the outline is outside: of large bodies, which may touch, it is narrow.
  context.lineWidth = Math.min((isActive ? 0.26 : 0.2) * radius, MAX_OUTLINE);
  context.strokeStyle = isActive ? colours.paper : colours.inactive;
  context.stroke();
  context.fillStyle = colours.roles[role];
  if (isActive) context.fill();
}

/** Draws agents as paths, which are smooth, and slow for very many. */
export class PathRenderer {
  constructor(canvas, scene) {
    Object.assign(this, { canvas, scene });
  }

  /** Draws a frame. `view` has the pixels of the canvas in a pixel of the picture, the radius of symbols, and colours. */
  draw(frame, { scale, radius, colours }) {
    const { canvas, scene } = this;
    const context = clearCanvas(canvas, scale);
    const { x, y, heading, role } = scene.agents;
    const [xs, ys, roles, headings] = [x.row(frame), y.row(frame), role.row(frame), heading?.row(frame)];
    // Inactive agents are drawn first, so that they cover no others.
    for (const isActive of [false, true]) {
      for (let agent = 0; agent < xs.length; agent++) {
        if (scene.isActive(agent, frame) !== isActive || !Number.isFinite(xs[agent] + ys[agent])) continue;
        drawSymbol(context, scene, roles[agent], colours, isActive, xs[agent], ys[agent], radius, headings?.[agent] || 0);
      }
    }
  }
}

/** Returns whether an agent jumped, as over the edge of a world without edges: its trail has a gap there. */
const isJump = (scene, dx, dy) => !(Math.abs(dx) < scene.header.width / 2 && Math.abs(dy) < scene.header.height / 2);

/** Adds the ways that some agents came in the step before a frame to a path. */
function traceSegments(context, scene, frame, isShown) {
  const { x, y } = scene.agents;
  const [x0, y0, x1, y1] = [x.row(frame - 1), y.row(frame - 1), x.row(frame), y.row(frame)];
  for (let agent = 0; agent < x1.length; agent++) {
    const [dx, dy] = [x1[agent] - x0[agent], y1[agent] - y0[agent]];
    if (!isShown(agent) || (!dx && !dy) || isJump(scene, dx, dy)) continue;
    context.moveTo(x0[agent], y0[agent]);
    context.lineTo(x1[agent], y1[agent]);
  }
}

/** Draws the ways that agents came in the last frames, which fade with their age. */
export function drawTrails(context, scene, frame, colours, radius) {
  const length = Math.min(frame, Math.max(2, Math.min(MAX_TRAIL, Math.floor(TRAIL_SEGMENTS / scene.numAgents))));
  context.lineCap = "butt"; // Round ends of transparent lines would be dots where the lines meet.
  for (let age = length - 1; age >= 0; age--) {
    const share = 1 - age / length;
    const roles = scene.agents.role.row(frame - age);
    context.globalAlpha = 0.5 * share;
    context.lineWidth = radius * (0.2 + 0.5 * share);
    colours.roles.forEach((colour, role) => {
      context.beginPath();
      traceSegments(context, scene, frame - age, (agent) => roles[agent] === role);
      context.strokeStyle = colour;
      context.stroke();
    });
  }
  context.globalAlpha = 1;
}

function drawRing(context, { x, y }, radius, width, colour) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.stroke();
}

function drawLink(context, from, to, gap) {
  const distance = Math.hypot(to.x - from.x, to.y - from.y);
  if (distance <= 2 * gap) return;
  const [dx, dy] = [(gap * (to.x - from.x)) / distance, (gap * (to.y - from.y)) / distance];
  context.beginPath();
  context.moveTo(from.x + dx, from.y + dy);
  context.lineTo(to.x - dx, to.y - dy);
  context.stroke();
}

/** Draws a ring around an agent, the way that it came, and lines to the agents in its neighbour slots. */
export function drawSelection(context, scene, frame, agent, colours, pixel) {
  const position = scene.positionOf(agent, frame);
  if (!position) return;
  const gap = symbolRadius(scene, frame, pixel) + RING_GAP * pixel;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.25 * pixel;
  context.globalAlpha = 0.45;
  context.beginPath();
  const isSelected = (other) => other === agent;
  for (let t = Math.max(1, frame - SELECTED_TRAIL); t <= frame; t++) traceSegments(context, scene, t, isSelected);
  context.stroke();
  context.globalAlpha = 0.9;
  context.setLineDash([4 * pixel, 3 * pixel]);
  for (const other of scene.detail("neighbors", agent, frame) ?? []) {
    const end = scene.positionOf(other, frame);
    if (!end) continue;
    drawLink(context, position, end, gap);
    drawRing(context, end, gap - pixel, pixel, colours.ink);
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
  drawRing(context, position, gap, 4.5 * pixel, colours.paper);
  drawRing(context, position, gap, 2 * pixel, colours.ink);
}

// Draws what a picture shows of the selected agent.

import { isJump, symbolRadius } from "./agents.js";
import { cssColour } from "./theme.js";

const TRAIL = 60; // frames
const RING_GAP = 5; // CSS pixels

function ring(context, { x, y }, radius, width, colour) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.lineWidth = width;
  context.strokeStyle = colour;
  context.stroke();
}

function drawWay(context, scene, frame, agent) {
  context.beginPath();
  for (let t = Math.max(0, frame - TRAIL), last = null; t <= frame; t++) {
    const next = scene.positionOf(agent, t);
    if (next && last && !isJump(scene, next.x - last.x, next.y - last.y)) context.lineTo(next.x, next.y);
    else if (next) context.moveTo(next.x, next.y);
    last = next;
  }
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
  const gap = symbolRadius(scene, pixel) + RING_GAP * pixel;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.25 * pixel;
  context.globalAlpha = 0.45;
  drawWay(context, scene, frame, agent);
  context.globalAlpha = 0.9;
  context.setLineDash([4 * pixel, 3 * pixel]);
  for (const other of scene.detail("neighbors", agent, frame) ?? []) {
    const end = other < 0 || other >= scene.numAgents ? null : scene.positionOf(other, frame);
    if (!end) continue;
    drawLink(context, position, end, gap);
    ring(context, end, gap - pixel, pixel, colours.ink);
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
  ring(context, position, gap, 4.5 * pixel, colours.paper);
  ring(context, position, gap, 2 * pixel, cssColour("accent"));
}

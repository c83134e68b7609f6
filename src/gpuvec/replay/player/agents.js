// Draws agents and their trails on a 2D context, and the symbols of roles for legends and for the atlas of the WebGL renderer.

const TRAIL_SEGMENTS = 20000; // of all agents in a frame
const MAX_TRAIL = 32; // frames
const MIN_RADIUS = 3.2; // CSS pixels
const MIN_RADIUS_OF_MANY = 1.6;
export const MANY_AGENTS = 2000;

/** Returns the radius of symbols in pixels of the picture; `pixel` is the size of a CSS pixel there. */
export function symbolRadius(scene, pixel) {
  return Math.max(scene.header.agents.radius, pixel * (scene.numAgents > MANY_AGENTS ? MIN_RADIUS_OF_MANY : MIN_RADIUS));
}

/** Returns the number of frames before this one that trails show. */
export function trailLength(scene, frame) {
  return Math.min(frame, Math.max(2, Math.min(MAX_TRAIL, Math.floor(TRAIL_SEGMENTS / scene.numAgents))));
}

/** Begins the path of a role's symbol around a position. The symbol's own y is upwards, as headings turn. */
export function traceSymbol(context, corners, x, y, radius, heading) {
  const [cos, sin] = [radius * Math.cos(heading), radius * Math.sin(heading)];
  context.beginPath();
  for (const [u, v] of corners) context.lineTo(x + cos * u - sin * v, y - sin * u - cos * v);
  context.closePath();
}

/** Draws a symbol: filled with an outline in the colour of the paper, or hollow and grey if it is inactive. */
export function drawSymbol(context, scene, role, colours, isActive, x, y, radius, heading) {
  const { symbols } = scene.header.agents;
  traceSymbol(context, symbols[role % symbols.length], x, y, radius, heading);
  context.lineJoin = "round";
  if (isActive) {
    context.lineWidth = 0.25 * radius;
    context.strokeStyle = colours.paper;
    context.stroke();
    context.fillStyle = colours.roles[role % colours.roles.length];
    context.fill();
  } else {
    context.lineWidth = 0.28 * radius;
    context.strokeStyle = colours.inactive;
    context.stroke();
  }
}

/** Draws all agents of a frame: inactive ones first, so that they cover no others. */
export function drawAgents(context, scene, frame, colours, radius) {
  const { x, y, heading, role } = scene.agents;
  const [xs, ys, roles, headings] = [x.row(frame), y.row(frame), role.row(frame), heading?.row(frame)];
  for (const isActive of [false, true]) {
    for (let agent = 0; agent < xs.length; agent++) {
      if (scene.isActive(agent, frame) !== isActive || !Number.isFinite(xs[agent] + ys[agent])) continue;
      const angle = headings?.[agent] ?? 0;
      drawSymbol(context, scene, roles[agent], colours, isActive, xs[agent], ys[agent], radius, Number.isFinite(angle) ? angle : 0);
    }
  }
}

/** Returns whether an agent jumped, as over the edge of a world without edges: its trail has a gap there. */
export function isJump(scene, dx, dy) {
  return !(Math.abs(dx) < scene.header.width / 2 && Math.abs(dy) < scene.header.height / 2);
}

function traceSegments(context, scene, frame, role) {
  const { x, y, role: roles } = scene.agents;
  const [x0, y0, x1, y1, current] = [x.row(frame - 1), y.row(frame - 1), x.row(frame), y.row(frame), roles.row(frame)];
  context.beginPath();
  for (let agent = 0; agent < x1.length; agent++) {
    const [dx, dy] = [x1[agent] - x0[agent], y1[agent] - y0[agent]];
    if (current[agent] !== role || (!dx && !dy) || isJump(scene, dx, dy) || !scene.isActive(agent, frame - 1)) continue;
    context.moveTo(x0[agent], y0[agent]);
    context.lineTo(x1[agent], y1[agent]);
  }
}

/** Draws the ways that agents came in the last frames, which fade with their age. */
export function drawTrails(context, scene, frame, colours, radius) {
  const length = trailLength(scene, frame);
  context.lineCap = scene.numAgents > MANY_AGENTS ? "butt" : "round";
  for (let age = length - 1; age >= 0; age--) {
    const share = 1 - age / length;
    context.globalAlpha = 0.5 * share;
    context.lineWidth = radius * (0.2 + 0.5 * share);
    scene.roleNames.forEach((_, role) => {
      traceSegments(context, scene, frame - age, role);
      context.strokeStyle = colours.roles[role % colours.roles.length];
      context.stroke();
    });
  }
  context.globalAlpha = 1;
}

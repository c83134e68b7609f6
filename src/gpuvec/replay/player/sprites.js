// Draws many agents as images of symbols from a sheet: by copying pixels, or in points.js with WebGL.

import { drawSymbol } from "./agents.js";

export const HEADINGS = 32;
const EXTENT = 1.35; // radii from the centre of a symbol to the edge of its image
const MAX_CELL = 64; // pixels
const MIN_ALPHA = 90;

/** Returns a sheet of images of `cell` x `cell` pixels; rows are 2 * role for active and 2 * role + 1 for inactive agents. */
export function makeSheet(scene, { scale, radius, colours }) {
  const cell = Math.min(Math.max(Math.ceil(2 * EXTENT * radius * scale), 2), MAX_CELL);
  const rows = 2 * scene.roleNames.length;
  const canvas = Object.assign(document.createElement("canvas"), { width: cell * HEADINGS, height: cell * rows });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  for (let row = 0; row < rows; row++) {
    for (let k = 0; k < HEADINGS; k++) {
      const [x, y, heading] = [cell * (k + 0.5), cell * (row + 0.5), (2 * Math.PI * k) / HEADINGS];
      drawSymbol(context, scene, row >> 1, colours, row % 2 === 0, x, y, cell / 2 / EXTENT, heading);
    }
  }
  return { canvas, context, cell };
}

/** Places of the images of agents. */
export class SpritePlaces {
  constructor(scene) {
    this.scene = scene;
    // Roles of fewer agents are drawn over those of more.
    const roles = scene.agents.role.row(0);
    const counts = scene.roleNames.map((_, role) => roles.filter((other) => other === role).length);
    this.order = Uint32Array.from(roles.keys()).sort((a, b) => counts[roles[b]] - counts[roles[a]] || a - b);
    this.data = new Float32Array(4 * roles.length);
  }

  /** Returns x, y [pixels of the canvas], column and row of the sheet of the agents of a frame, in the order of drawing. */
  at(frame, scale) {
    const { data, order, scene: { agents } } = this;
    const [x, y, role, heading, active] = ["x", "y", "role", "heading", "active"].map((name) => agents[name]?.row(frame));
    order.forEach((agent, k) => {
      data[4 * k] = scale * x[agent];
      data[4 * k + 1] = scale * y[agent];
      data[4 * k + 2] = heading ? Math.round((heading[agent] * HEADINGS) / (2 * Math.PI)) & (HEADINGS - 1) : 0;
      data[4 * k + 3] = 2 * role[agent] + (active && !active[agent] ? 1 : 0);
    });
    return data;
  }
}

/** Draws many agents without a GPU, by copying the pixels of images: much faster than paths or images of a 2D context. */
export class SpriteRenderer {
  constructor(canvas, scene) {
    Object.assign(this, { canvas, scene, context: canvas.getContext("2d"), places: new SpritePlaces(scene) });
  }

  /** Takes another sheet: its pixels, mixed with the paper where they are transparent, and 0 where nothing is to be drawn. */
  setSheet(view) {
    const { canvas: { width, height }, context, cell } = makeSheet(this.scene, view);
    const transparent = context.getImageData(0, 0, width, height).data;
    context.globalCompositeOperation = "destination-over";
    context.fillStyle = view.colours.paper;
    context.fillRect(0, 0, width, height);
    const mixed = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
    const words = mixed.map((word, k) => (transparent[4 * k + 3] > MIN_ALPHA ? word : 0));
    const image = this.context.createImageData(this.canvas.width, this.canvas.height);
    Object.assign(this, { view, words, cell, sheetWidth: width, image, pixels: new Uint32Array(image.data.buffer) });
  }

  draw(frame, view) {
    if (view !== this.view) this.setSheet(view);
    this.pixels.fill(0);
    const data = this.places.at(frame, view.scale);
    const half = (this.cell - 1) / 2;
    for (let k = 0; k < data.length; k += 4) {
      // A position that is not finite is outside of the picture.
      this.copy(Math.round(data[k] - half), Math.round(data[k + 1] - half), data[k + 2], data[k + 3]);
    }
    this.context.putImageData(this.image, 0, 0);
  }

  copy(left, top, column, row) {
    const { words, sheetWidth, pixels, cell, canvas: { width, height } } = this;
    const [first, last] = [Math.max(0, -left), Math.min(cell, width - left)];
    const bottom = Math.min(cell, height - top);
    for (let v = Math.max(0, -top); v < bottom; v++) {
      const source = sheetWidth * (cell * row + v) + cell * column;
      const target = width * (top + v) + left;
      for (let u = first; u < last; u++) if (words[source + u]) pixels[target + u] = words[source + u];
    }
  }
}

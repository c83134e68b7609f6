// Symbols of agents as images, for scenes with many agents: one for each role and heading, active and inactive.

import { drawSymbol } from "./agents.js";

export const HEADINGS = 32;
const EXTENT = 1.35; // radii from the centre of a symbol to the edge of its image
const MAX_CELL = 64; // pixels

/** Returns a sheet of images of `cell` x `cell` pixels; rows are 2 * role for active and 2 * role + 1 for inactive agents. */
export function makeSheet(scene, colours, radius) {
  const size = 2 * EXTENT * radius;
  const cell = Math.min(Math.max(Math.ceil(size), 2), MAX_CELL);
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: cell * HEADINGS, height: 2 * cell * scene.roleNames.length });
  const context = canvas.getContext("2d");
  for (let row = 0; row < 2 * scene.roleNames.length; row++) {
    for (let k = 0; k < HEADINGS; k++) {
      const [x, y, heading] = [cell * (k + 0.5), cell * (row + 0.5), (2 * Math.PI * k) / HEADINGS];
      drawSymbol(context, scene, row >> 1, colours, row % 2 === 0, x, y, cell / 2 / EXTENT, heading);
    }
  }
  return { canvas, cell, size: Math.max(size, cell), colours, radius };
}

const mixWord = (rgba, i, paper, share) =>
  [2, 1, 0].reduce((word, c) => (word << 8) | Math.round(paper[c] + (rgba[i + c] - paper[c]) * share), 0xff) >>> 0;

/** Draws many agents without WebGL, by copying the pixels of sprites: much faster than paths or images of a 2D context. */
export class SpriteRenderer {
  constructor(canvas, scene, order) {
    Object.assign(this, { canvas, scene, order });
    this.context = canvas.getContext("2d");
  }

  /** Takes another sheet: its pixels, mixed with the paper where they are transparent, and 0 where nothing is to be drawn. */
  setSheet(sheet) {
    const { width, height } = sheet.canvas;
    const { data } = sheet.canvas.getContext("2d").getImageData(0, 0, width, height);
    const paper = [1, 3, 5].map((i) => parseInt(sheet.colours.paper.slice(i, i + 2), 16));
    const words = Uint32Array.from({ length: width * height }, (_, k) =>
      data[4 * k + 3] > 90 ? mixWord(data, 4 * k, paper, data[4 * k + 3] / 255) : 0);
    Object.assign(this, { sheet, words, width });
  }

  draw(frame, view, sheet) {
    const { canvas, context, scene, order } = this;
    if (sheet !== this.sheet) this.setSheet(sheet);
    if (this.image?.width !== canvas.width || this.image.height !== canvas.height) {
      this.image = context.createImageData(canvas.width, canvas.height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(0);
    const { x, y, heading, role, active } = scene.agents;
    const [xs, ys, roles, headings, isActive] = [x.row(frame), y.row(frame), role.row(frame), heading?.row(frame), active?.row(frame)];
    const columns = HEADINGS / (2 * Math.PI);
    const half = (sheet.cell - 1) / 2;
    for (const agent of order) {
      const column = headings ? Math.round(headings[agent] * columns) & (HEADINGS - 1) : 0;
      const row = 2 * roles[agent] + (isActive && !isActive[agent] ? 1 : 0);
      const [left, top] = [Math.round(view.x + view.scale * xs[agent] - half), Math.round(view.y + view.scale * ys[agent] - half)];
      if (left > -sheet.cell && top > -sheet.cell && left < canvas.width && top < canvas.height) this.copy(column, row, left, top);
    }
    context.putImageData(this.image, 0, 0);
  }

  copy(column, row, left, top) {
    const { words, width, pixels, canvas, sheet: { cell } } = this;
    const [first, last] = [Math.max(0, -left), Math.min(cell, canvas.width - left)];
    for (let v = Math.max(0, -top); v < cell && top + v < canvas.height; v++) {
      const source = width * (cell * row + v) + cell * column;
      const target = canvas.width * (top + v) + left;
      for (let u = first; u < last; u++) if (words[source + u]) pixels[target + u] = words[source + u];
    }
  }
}

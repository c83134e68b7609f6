// Draws the marks of a scene on a 2D context in pixels of the picture.

import { channels } from "./theme.js";

const MIN_TEXT = 9; // CSS pixels
const MAX_TEXT = 200; // characters
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";
const images = new WeakMap(); // of the marks that are cells

/** Returns a colour "#rrggbb" as a pixel: red, green, blue and alpha, a little-endian word on all machines of browsers. */
function toPixel(hex) {
  const [r, g, b] = channels(hex);
  return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
}

/** Returns a canvas with a pixel for each cell of a mark, which is made again for other colours and other rows. */
function cellsImage(scene, mark, row, colours) {
  const field = scene.field(mark.values);
  const [, height, width] = field.shape;
  let image = images.get(mark);
  if (!image) {
    image = { canvas: Object.assign(document.createElement("canvas"), { width, height }) };
    images.set(mark, image);
  }
  const shown = field.shape[0] === 1 ? 0 : row;
  if (image.row !== shown || image.colours !== colours) {
    Object.assign(image, { row: shown, colours });
    const table = mark.palette.map((index) => toPixel(colours.palette[index]));
    const context = image.canvas.getContext("2d");
    const pixels = context.createImageData(width, height);
    new Uint32Array(pixels.data.buffer).set(field.row(shown).map((value) => table[value]));
    context.putImageData(pixels, 0, 0);
  }
  return image.canvas;
}

function tracePoints(context, numbers, offset, points) {
  context.beginPath();
  for (let k = offset; k < offset + 2 * points; k += 2) context.lineTo(numbers[k], numbers[k + 1]);
}

/** Writes a text in the room that it has up to the edge of the picture: where it is too long, the browser condenses it. */
function drawText(context, scene, mark, row, [x, y], pixel) {
  const text = mark.texts?.[scene.field(mark.text).row(row)[0]];
  const { width } = scene.header;
  const room = { center: 2 * Math.min(x, width - x), right: x }[mark.align] ?? width - x;
  if (typeof text !== "string" || !(room > 0)) return;
  context.font = `${Math.max(Number(mark.size) || 0, MIN_TEXT * pixel)}px ${FONT}`;
  context.textAlign = mark.align;
  context.textBaseline = "middle";
  context.fillText(text.slice(0, MAX_TEXT), x, y, room);
}

/** Draws parts of a layout. `pixel` is the size of a CSS pixel in the picture. */
export function drawMarks(context, scene, { layout, row }, parts, colours, pixel) {
  const numbers = scene.field(layout.coordinates).row(row);
  const indices = scene.field(layout.colours).row(row);
  context.lineJoin = context.lineCap = "round";
  for (const { mark, offset, colour } of parts) {
    context.fillStyle = context.strokeStyle = colours.palette[indices[colour]];
    if (mark.kind === "cells") {
      const [left, top, right, bottom] = mark.box;
      context.imageSmoothingEnabled = false;
      context.drawImage(cellsImage(scene, mark, row, colours), left, top, right - left, bottom - top);
    } else if (mark.kind === "circle") {
      context.beginPath();
      context.arc(numbers[offset], numbers[offset + 1], Math.max(numbers[offset + 2], 0), 0, 2 * Math.PI);
      context.fill();
    } else if (mark.kind === "polygon") {
      tracePoints(context, numbers, offset, mark.points);
      context.fill();
    } else if (mark.kind === "line") {
      tracePoints(context, numbers, offset, mark.points);
      context.lineWidth = Math.max(mark.width, pixel);
      context.stroke();
    } else if (mark.kind === "text") {
      drawText(context, scene, mark, row, numbers.subarray(offset), pixel);
    }
  }
}

/** Returns whether marks of a layout are the same in all of its frames. */
export function isConstant(scene, { layout }, parts) {
  const tracks = [layout.coordinates, layout.colours, ...parts.map(({ mark }) => mark.values ?? mark.text).filter(Boolean)];
  return tracks.every((track) => scene.field(track).shape[0] === 1);
}

// Draws the marks of a scene on a 2D context in pixels of the picture.

const images = new WeakMap(); // of the marks that are cells

function cellsImage(scene, mark, row, colours) {
  const field = scene.field(mark.values);
  const [, rows, columns] = field.shape;
  let image = images.get(mark);
  if (!image) {
    const canvas = document.createElement("canvas");
    Object.assign(canvas, { width: columns, height: rows });
    const pixels = canvas.getContext("2d").createImageData(columns, rows);
    image = { canvas, pixels, words: new Uint32Array(pixels.data.buffer) };
    images.set(mark, image);
  }
  const key = field.shape[0] === 1 ? 0 : row;
  if (image.row !== key || image.colours !== colours) {
    // The bytes of a pixel are red, green, blue and alpha, on machines that browsers run on as a little-endian word.
    const table = mark.palette.map((index) => {
      const [r, g, b] = [1, 3, 5].map((i) => parseInt(colours.palette[index].slice(i, i + 2), 16));
      return (0xff000000 | (b << 16) | (g << 8) | r) >>> 0;
    });
    const values = field.row(row);
    for (let i = 0; i < values.length; i++) image.words[i] = table[values[i]];
    image.canvas.getContext("2d").putImageData(image.pixels, 0, 0);
    Object.assign(image, { row: key, colours });
  }
  return image.canvas;
}

function drawCells(context, scene, mark, row, colours) {
  const [left, top, right, bottom] = mark.box;
  context.imageSmoothingEnabled = false;
  context.drawImage(cellsImage(scene, mark, row, colours), left, top, right - left, bottom - top);
}

function tracePoints(context, numbers, offset, points) {
  context.beginPath();
  for (let k = 0; k < points; k++) {
    const [x, y] = [numbers[offset + 2 * k], numbers[offset + 2 * k + 1]];
    if (k) context.lineTo(x, y);
    else context.moveTo(x, y);
  }
}

/** Draws parts of a layout, which `Scene.layoutAt` returns with its row. `pixel` is the size of a CSS pixel in the picture. */
export function drawMarks(context, scene, layout, parts, row, colours, pixel) {
  if (!parts.length) return;
  const numbers = scene.field(layout.coordinates).row(row);
  const indices = scene.field(layout.colours).row(row);
  context.lineJoin = "round";
  context.lineCap = "round";
  for (const { mark, offset, colour } of parts) {
    if (mark.kind === "cells") {
      drawCells(context, scene, mark, row, colours);
      continue;
    }
    context.fillStyle = context.strokeStyle = colours.palette[indices[colour]];
    if (mark.kind === "circle") {
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
    }
  }
}

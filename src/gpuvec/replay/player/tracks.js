// Decodes tracks, which are arrays over frames. src/gpuvec/replay/tracks.py describes how they are stored.

import { damaged } from "./loading.js";

const NOT_FINITE = 0xffff;

/** An array over frames: `data` has all elements of the first frame, then those of the second, and so on. */
export class Field {
  constructor(shape, data) {
    this.shape = shape;
    this.data = data;
    this.size = shape.slice(1).reduce((a, b) => a * b, 1);
  }

  /** Returns the elements of a frame. A field of one frame is constant; a field without frames has none. */
  row(frame) {
    const row = this.shape[0] === 1 ? 0 : frame;
    return this.data.subarray(row * this.size, (row + 1) * this.size);
  }
}

function isValid({ shape, offset, kind, low, step, order, planes, table }) {
  const isCount = (n) => Number.isInteger(n) && n >= 0;
  return (
    Array.isArray(shape) && shape.length > 0 && [...shape, offset].every(isCount) &&
    [low, step, ...(table ?? [])].every(Number.isFinite) &&
    ["float", "int", "bool"].includes(kind) && [0, 1, 2].includes(order) && [1, 2].includes(planes)
  );
}

/** Returns the field of a track, whose description is a part of the header. `data` has the bytes of all tracks. */
export function decode(track, data) {
  if (!track || !isValid(track)) throw damaged(`A track has no valid description: ${JSON.stringify(track)}.`);
  const { shape, offset, kind, low, step, order, planes, table } = track;
  const count = shape.reduce((a, b) => a * b, 1);
  if (offset + planes * count > data.length) {
    throw damaged(`A track ends behind the ${data.length.toLocaleString("en")} bytes of data.`);
  }
  const valueOf = table
    ? (code) => table[code] ?? NaN
    : (code) => (kind !== "float" ? code + low : code === NOT_FINITE ? NaN : low + step * code);
  const values = new (kind === "float" ? Float32Array : kind === "bool" ? Uint8Array : Int32Array)(count);
  const elements = shape[0] ? count / shape[0] : 0;
  const high = planes === 2 ? offset + count : -1;
  for (let element = 0, i = 0; element < elements; element++) {
    let code = 0;
    let slope = 0;
    for (let target = element; target < count; target += elements, i++) {
      const zigzag = data[offset + i] | (high < 0 ? 0 : data[high + i] << 8);
      const residual = (zigzag >> 1) ^ -(zigzag & 1);
      slope = order === 2 ? slope + residual : residual;
      code = (order === 0 ? residual : code + slope) & 0xffff;
      values[target] = valueOf(code);
    }
  }
  return new Field(shape, values);
}

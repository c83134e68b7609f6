// Decodes tracks, which are arrays over frames. src/gpuvec/replay/tracks.py describes how they are stored.

const BASE64_CHUNK = 1 << 20; // characters, a multiple of 4
const NOT_FINITE = 0xffff;

/** A file that cannot be played. `title` and the message are shown in the page. */
export class ReplayProblem extends Error {
  constructor(title, message) {
    super(message);
    this.title = title;
  }
}

export const damaged = (message) => new ReplayProblem("This file is damaged", message);

function toBytes(base64) {
  const binary = atob(base64);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Returns the bytes of a zlib stream in base64. */
export async function inflate(base64) {
  if (typeof DecompressionStream === "undefined") {
    throw new ReplayProblem(
      "This browser is too old for replays",
      "It cannot decompress data (DecompressionStream is missing). Chrome and Edge have this since version 80, Safari since 16.4 " +
        "and Firefox since 113.",
    );
  }
  const stream = new DecompressionStream("deflate");
  const writer = stream.writable.getWriter();
  const inflated = new Response(stream.readable).arrayBuffer();
  try {
    const feed = async () => {
      for (let i = 0; i < base64.length; i += BASE64_CHUNK) await writer.write(toBytes(base64.slice(i, i + BASE64_CHUNK)));
      await writer.close();
    };
    const [buffer] = await Promise.all([inflated, feed()]);
    return new Uint8Array(buffer);
  } catch (error) {
    writer.abort(error).catch(() => {}); // The stream has failed already, and is reported once.
    inflated.catch(() => {});
    throw new ReplayProblem(
      "This file is incomplete or damaged",
      `Its data cannot be decompressed (${error.message}). Copy or download the file again.`,
    );
  }
}

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

/** Returns the field of a track, whose description is a part of the header. `data` has the bytes of all tracks. */
export function decode(track, data) {
  const { shape, offset, kind, low, step, order, planes } = track ?? {};
  const isCount = (n) => Number.isInteger(n) && n >= 0;
  const isValid = Array.isArray(shape) && shape.length > 0 && shape.every(isCount) && isCount(offset) && Number.isFinite(low) &&
    Number.isFinite(step) && ["float", "int", "bool"].includes(kind) && [0, 1, 2].includes(order) && [1, 2].includes(planes);
  if (!isValid) throw damaged(`A track has no valid description: ${JSON.stringify(track)}.`);
  const [frames] = shape;
  const count = shape.reduce((a, b) => a * b, 1);
  if (offset + planes * count > data.length) throw damaged(`A track ends behind the ${data.length.toLocaleString("en")} bytes of data.`);
  const values = kind === "float" ? new Float32Array(count) : kind === "bool" ? new Uint8Array(count) : new Int32Array(count);
  const elements = frames ? count / frames : 0;
  const high = planes === 2 ? offset + count : -1;
  for (let element = 0, i = 0; element < elements; element++) {
    let code = 0;
    let slope = 0;
    for (let target = element; target < count; target += elements, i++) {
      const zigzag = data[offset + i] | (high < 0 ? 0 : data[high + i] << 8);
      const residual = (zigzag >> 1) ^ -(zigzag & 1);
      slope = order === 2 ? slope + residual : residual;
      code = (order === 0 ? residual : code + slope) & 0xffff;
      values[target] = kind !== "float" ? code + low : code === NOT_FINITE ? NaN : low + step * code;
    }
  }
  return new Field(shape, values);
}

// Draws many agents with WebGL: one point each, with an image from the sheet of symbols.

import { makeSheet, SpritePlaces } from "./sprites.js";

const VERTEX_SHADER = `
attribute vec4 place;
uniform vec2 canvas;
uniform float size;
varying vec2 cell;
void main() {
  gl_Position = vec4(2.0 * place.x / canvas.x - 1.0, 1.0 - 2.0 * place.y / canvas.y, 0.0, 1.0);
  gl_PointSize = size;
  cell = place.zw;
}`;

const FRAGMENT_SHADER = `
precision highp float;
uniform sampler2D sheet;
uniform float size;
uniform vec2 shape;
varying vec2 cell;
void main() {
  gl_FragColor = texture2D(sheet, (cell + clamp(gl_PointCoord, 0.5 / size, 1.0 - 0.5 / size)) * shape);
}`;

/** Returns whether a context has no GPU. Not all browsers respect `failIfMajorPerformanceCaveat`, so the name says it. */
function isSoftware(gl) {
  const name = gl.getExtension("WEBGL_debug_renderer_info")?.UNMASKED_RENDERER_WEBGL ?? gl.RENDERER;
  return /swiftshader|llvmpipe|software|basic render/i.test(gl.getParameter(name));
}

function compile(gl) {
  const program = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX_SHADER], [gl.FRAGMENT_SHADER, FRAGMENT_SHADER]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  return gl.getProgramParameter(program, gl.LINK_STATUS) ? program : null;
}

export class PointRenderer {
  /** Returns a renderer on a canvas; null where there is no WebGL, or one without a GPU, slower than copying pixels. */
  static create(canvas, scene) {
    const gl = canvas.getContext("webgl", { antialias: false, depth: false });
    const program = gl && !isSoftware(gl) && compile(gl);
    return program ? new PointRenderer(canvas, scene, gl, program) : null;
  }

  constructor(canvas, scene, gl, program) {
    Object.assign(this, { canvas, scene, gl, places: new SpritePlaces(scene) });
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    const place = gl.getAttribLocation(program, "place");
    gl.enableVertexAttribArray(place);
    gl.vertexAttribPointer(place, 4, gl.FLOAT, false, 0, 0);
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const side of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, side, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR);
    gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, true);
    this.uniform = (name) => gl.getUniformLocation(program, name);
  }

  /** Takes another sheet of symbols. */
  setSheet(view) {
    const { gl, uniform, canvas, scene } = this;
    const { canvas: sheet, cell } = makeSheet(scene, view);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, sheet);
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.uniform2f(uniform("canvas"), canvas.width, canvas.height);
    gl.uniform2f(uniform("shape"), cell / sheet.width, cell / sheet.height);
    gl.uniform1f(uniform("size"), cell);
    this.view = view;
  }

  draw(frame, view) {
    const { gl, places } = this;
    if (view !== this.view) this.setSheet(view);
    // A position that is not finite is outside of the picture.
    const data = places.at(frame, view.scale).map((value) => (Number.isFinite(value) ? value : -1e6));
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STREAM_DRAW);
    gl.drawArrays(gl.POINTS, 0, data.length / 4);
  }
}

// Draws many agents with WebGL: one point each, with an image from the sheet of sprites.

import { HEADINGS } from "./sprites.js";

const VERTEX_SHADER = `
attribute float x, y, heading, role, is_active;
uniform vec4 view;
uniform float size;
varying vec2 cell;
void main() {
  gl_Position = vec4(vec2(x, y) * view.xy + view.zw, 0.0, 1.0);
  gl_PointSize = size;
  cell = vec2(floor(mod(heading * ${(HEADINGS / 2 / Math.PI).toFixed(6)} + 0.5, ${HEADINGS}.0)), 2.0 * role + 1.0 - is_active);
}`;

const FRAGMENT_SHADER = `
precision highp float;
uniform sampler2D sheet;
uniform float inset;
uniform vec2 shape;
varying vec2 cell;
void main() {
  gl_FragColor = texture2D(sheet, (cell + clamp(gl_PointCoord, inset, 1.0 - inset)) * shape);
}`;

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
  /** Returns a renderer on a canvas, or null where there is no WebGL, or one that is slower than sprites in 2D, without a GPU. */
  static create(canvas, scene, order) {
    const gl = canvas.getContext("webgl", { antialias: false, depth: false, failIfMajorPerformanceCaveat: true });
    const program = gl && gl.getExtension("OES_element_index_uint") && compile(gl);
    return program ? new PointRenderer(canvas, gl, program, scene, order) : null;
  }

  constructor(canvas, gl, program, scene, order) {
    Object.assign(this, { canvas, gl, scene });
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.uniforms = Object.fromEntries(
      ["view", "size", "inset", "shape"].map((name) => [name, gl.getUniformLocation(program, name)]),
    );
    this.attributes = Object.fromEntries(["x", "y", "heading", "role", "is_active"].map((name) =>
      [name, { location: gl.getAttribLocation(program, name), buffer: gl.createBuffer() }]));
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    for (const side of [gl.TEXTURE_WRAP_S, gl.TEXTURE_WRAP_T]) gl.texParameteri(gl.TEXTURE_2D, side, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR);
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, order, gl.STATIC_DRAW);
  }

  /** Takes another sheet of sprites. */
  setSheet(sheet) {
    const { gl, uniforms } = this;
    gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, true);
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, sheet.canvas);
    gl.uniform2f(uniforms.shape, sheet.cell / sheet.canvas.width, sheet.cell / sheet.canvas.height);
    gl.uniform1f(uniforms.inset, 0.5 / sheet.cell);
    gl.uniform1f(uniforms.size, sheet.size);
    this.sheet = sheet;
  }

  /** Gives an attribute the numbers of all vertices, or one number for all if `data` is one. */
  setAttribute(name, data) {
    const { gl } = this;
    const { location, buffer } = this.attributes[name];
    if (typeof data === "number") {
      gl.disableVertexAttribArray(location);
      gl.vertexAttrib1f(location, data);
      return;
    }
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STREAM_DRAW);
    gl.enableVertexAttribArray(location);
    gl.vertexAttribPointer(location, 1, data instanceof Uint8Array ? gl.UNSIGNED_BYTE : gl.FLOAT, false, 0, 0);
  }

  /** Draws a frame. `view` has the scale and the offset from pixels of the picture to those of the canvas. */
  draw(frame, view, sheet) {
    const { gl, uniforms, canvas, scene } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const [sx, sy] = [2 / canvas.width, -2 / canvas.height];
    gl.uniform4f(uniforms.view, sx * view.scale, sy * view.scale, sx * view.x - 1, sy * view.y + 1);
    if (sheet !== this.sheet) this.setSheet(sheet);
    const { x, y, heading, role, active } = scene.agents;
    // Positions that are not finite are drawn outside of the picture.
    this.setAttribute("x", x.row(frame).map((value) => (Number.isFinite(value) ? value : -1e7)));
    this.setAttribute("y", y.row(frame).map((value) => (Number.isFinite(value) ? value : -1e7)));
    this.setAttribute("heading", heading?.row(frame) ?? 0);
    this.setAttribute("role", Uint8Array.from(role.row(frame)));
    this.setAttribute("is_active", active?.row(frame) ?? 1);
    gl.drawElements(gl.POINTS, scene.numAgents, gl.UNSIGNED_INT, 0);
  }
}

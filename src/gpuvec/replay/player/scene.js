// Scenes: episodes as the header of a replay describes them, with tracks that are decoded when they are first needed.

import { damaged, ReplayProblem } from "./loading.js";
import { COLOURS, isGrey } from "./theme.js";
import { decode } from "./tracks.js";

const VERSION = 2;
const MAX_AGENT_CURVES = 4;

/** Returns the scenes of a header, which is JSON. `data` has the bytes of all tracks. */
export function readScenes(text, data) {
  let header;
  try {
    header = JSON.parse(text);
  } catch (error) {
    throw damaged(`Its header is not valid (${error.message}). Copy or download the file again.`);
  }
  if (header?.format !== "gpuvec-replay") throw damaged("Its header is not one of a replay of gpuvec.");
  if (header.version !== VERSION) {
    throw new ReplayProblem(
      `This replay has version ${header.version} of the format`,
      `This player reads version ${VERSION}. The file was written by ${header.generator ?? "an unknown program"}.`,
    );
  }
  if (!Array.isArray(header.scenes) || !header.scenes.length) throw damaged("It has no scenes.");
  return header.scenes.map((scene, index) => new Scene(scene, index, data));
}

/** Parts of the marks of a layout, each with the positions of its numbers in the tracks of coordinates and colours. */
function splitLayout(layout, scene) {
  let [offset, colour] = [0, 0];
  const parts = layout.marks.map((mark) => {
    const part = { mark, offset, colour };
    const count = mark.kind === "circle" ? 3 : 2 * (mark.points ?? 0);
    const isText = mark.kind === "text";
    if (!(count >= 0) || (isText && !(Array.isArray(mark.texts) && scene.field(mark.text).size === 1))) {
      throw damaged(`A mark is not valid: ${JSON.stringify(mark).slice(0, 200)}.`);
    }
    offset += count;
    if (mark.kind !== "cells" && mark.kind !== "agents") colour += 1;
    return part;
  });
  if (offset !== scene.field(layout.coordinates).size || colour !== scene.field(layout.colours).size) {
    throw damaged("A layout has other numbers than its marks need.");
  }
  const agents = layout.marks.findIndex((mark) => mark.kind === "agents");
  const [before, after] = agents < 0 ? [parts, []] : [parts.slice(0, agents), parts.slice(agents + 1)];
  return { layout, before, after, hasAgents: agents >= 0 };
}

export class Scene {
  constructor(header, index, data) {
    Object.assign(this, { header, index, data, fields: new Map(), numFrames: header.num_frames });
    if (!Number.isInteger(this.numFrames) || this.numFrames < 1) throw damaged(`Scene ${index + 1} has no frames.`);
    // Scenes without a title of their own have that of their policy.
    this.title = header.title === header.env && header.policy ? header.policy : header.title ?? header.env;
    this.events = (header.events ?? []).map((event) => ({ agents: [], text: event.kind, ...event, scene: index }));
    this.details = header.details ?? { agents: [] };
    this.rewards = this.field(header.rewards); // (T - 1, A)
    this.numAgents = this.rewards.size;
    this.roleNames = header.agents?.names ?? ["agent"];
    // A curve is not black or white, which is the colour of a page.
    this.roleColours = (header.agents?.colours ?? COLOURS).map((colour, role) => (isGrey(colour) ? COLOURS[role % 6] : colour));
    if (header.agents) {
      const fields = ["role", "x", "y", "heading", "active"].filter((name) => header.agents[name]);
      this.agents = Object.fromEntries(fields.map((name) => [name, this.field(header.agents[name])]));
      this.numAgents = this.agents.x.size;
    }
    this.prepareLayouts();
  }

  /** Returns the field of a track. */
  field(track) {
    if (!this.fields.has(track)) this.fields.set(track, decode(track, this.data));
    return this.fields.get(track);
  }

  prepareLayouts() {
    this.layouts = (this.header.layouts ?? []).map((layout) => splitLayout(layout, this));
    const { width, height } = this.header;
    const fillsPicture = ({ box: [left, top, right, bottom] }) => right - left >= width && bottom - top >= height;
    const isMap = (mark) => mark.kind === "cells" && fillsPicture(mark);
    this.hasMap = this.layouts.some(({ layout }) => layout.marks.some(isMap));
    this.hasPicture = this.layouts.some(({ layout }) => layout.marks.length > 0);
    if (!this.layouts.length) return;
    const numbers = this.field(this.header.layout);
    const counts = this.layouts.map(() => 0);
    this.layoutOfFrame = Array.from({ length: this.numFrames }, (_, frame) => {
      const [number] = numbers.row(frame);
      if (!(number in counts)) throw damaged(`Frame ${frame} has layout ${number}, which is missing.`);
      return { ...this.layouts[number], row: counts[number]++ };
    });
  }

  /** Returns the frame of the scene at a frame of the clock: a shorter scene stays at its end. */
  clamp(frame) {
    return Math.min(frame, this.numFrames - 1);
  }

  /** Returns the radius of symbols in pixels of the picture, as the environment draws them. */
  radiusAt(frame) {
    const { radius, radii } = this.header.agents;
    return radii ? this.field(radii).row(frame)[0] : radius;
  }

  isActive(agent, frame) {
    return this.agents?.active?.row(frame)[agent] !== 0;
  }

  nameOf(agent, frame) {
    const role = this.agents?.role.row(frame)[agent] ?? 0;
    return this.numAgents > 1 ? `${this.roleNames[role]} ${agent}` : "agent";
  }

  /** Returns the position of an agent in pixels of the picture, or null where it is not drawn. */
  positionOf(agent, frame) {
    if (!this.layoutOfFrame?.[frame].hasAgents) return null;
    const [x, y] = [this.agents.x.row(frame)[agent], this.agents.y.row(frame)[agent]];
    return Number.isFinite(x + y) ? { x, y } : null;
  }

  /** Returns what a track of the details has for a step and an agent; null where there is nothing. */
  detail(name, agent, step) {
    const slot = this.details.agents.indexOf(agent);
    if (slot < 0 || !this.details[name] || step >= this.numFrames - 1) return null;
    const field = this.field(this.details[name]);
    const size = field.size / this.details.agents.length;
    const values = field.row(step).subarray(slot * size, (slot + 1) * size);
    if (name !== "observation") return values;
    const exponents = this.field(this.details.exponents).data;
    return values.map((value, k) => value * 2 ** exponents[k]);
  }

  /** Returns a number of the details of an agent over frames; null where there is none. */
  detailCurve(name, agent) {
    if (!this.detail(name, agent, 0)) return null;
    return Float64Array.from({ length: this.numFrames }, (_, t) => this.detail(name, agent, t)?.[0] ?? NaN);
  }

  /** Returns the rewards of an agent over frames: that of frame t was given by the step that ended in it. */
  rewardsOf(agent) {
    return Float64Array.from({ length: this.numFrames }, (_, t) => (t ? this.rewards.row(t - 1)[agent] : NaN));
  }

  /** Returns {name, values} of the mean rewards of each role, or of the rewards of each agent if few are not drawn. */
  rewardCurves() {
    const isByAgent = !this.agents && this.numAgents <= MAX_AGENT_CURVES;
    const names = isByAgent ? Array.from({ length: this.numAgents }, (_, agent) => `agent ${agent}`) : this.roleNames;
    const values = isByAgent ? names.map((_, agent) => this.rewardsOf(agent)) : this.meanRewards();
    return names.map((name, k) => ({ name: names.length > 1 ? name : "", values: values[k] }));
  }

  /** Returns the mean rewards of the agents of each role over frames. */
  meanRewards() {
    const means = this.roleNames.map(() => new Float64Array(this.numFrames).fill(NaN));
    for (let frame = 1; frame < this.numFrames; frame++) {
      const roles = this.agents?.role.row(frame);
      const [sums, counts] = [means.map(() => 0), means.map(() => 0)];
      this.rewards.row(frame - 1).forEach((reward, agent) => {
        const role = roles?.[agent] ?? 0;
        sums[role] += reward;
        counts[role] += 1;
      });
      means.forEach((mean, role) => (mean[frame] = sums[role] / counts[role]));
    }
    return means;
  }
}

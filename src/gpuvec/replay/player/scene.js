// Scenes: episodes as the header of a replay describes them, with tracks that are decoded when they are first needed.

import { damaged, decode, ReplayProblem } from "./tracks.js";

export const VERSION = 1;

/** Throws a problem for a header that is not one of a replay of this version. */
export function checkHeader(header) {
  if (header?.format !== "gpuvec-replay") throw damaged("Its header is not one of a replay of gpuvec.");
  if (header.version !== VERSION) {
    throw new ReplayProblem(
      `This replay has version ${header.version} of the format`,
      `This player reads version ${VERSION}. The file was written by ${header.generator ?? "an unknown program"}.`,
    );
  }
  if (!Array.isArray(header.scenes) || !header.scenes.length) throw damaged("It has no scenes.");
}

/** Returns the scenes of a header, whose tracks are in `data`. */
export function readScenes(header, data) {
  return header.scenes.map((scene, index) => new Scene(scene, index, data));
}

/** Parts of the marks of a layout, each with the positions of its numbers in the tracks of coordinates and colours. */
function splitLayout(layout) {
  let offset = 0;
  let colour = 0;
  const parts = layout.marks.map((mark) => {
    const part = { mark, offset, colour };
    if (mark.kind === "circle") offset += 3;
    else if (mark.kind === "polygon" || mark.kind === "line") offset += 2 * mark.points;
    if (mark.kind !== "cells" && mark.kind !== "agents") colour += 1;
    return part;
  });
  const agents = layout.marks.findIndex((mark) => mark.kind === "agents");
  return { layout, before: agents < 0 ? parts : parts.slice(0, agents), after: agents < 0 ? [] : parts.slice(agents + 1), hasAgents: agents >= 0 };
}

export class Scene {
  constructor(header, index, data) {
    this.header = header;
    this.index = index;
    this.data = data;
    this.fields = new Map();
    this.numFrames = header.num_frames;
    if (!Number.isInteger(this.numFrames) || this.numFrames < 1) throw damaged(`Scene ${index + 1} has no frames.`);
    this.events = (header.events ?? []).map((event) => ({ agents: [], text: event.kind, ...event, scene: index }));
    this.details = header.details ?? null;
    this.rewards = this.field(header.rewards); // (T - 1, A)
    this.numAgents = this.rewards.size;
    this.roleNames = header.agents?.names ?? (this.numAgents > 1 ? ["agents"] : ["agent"]);
    this.prepareLayouts();
    if (header.agents) {
      const { role, x, y, heading, active } = header.agents;
      this.agents = { role: this.field(role), x: this.field(x), y: this.field(y) };
      this.agents.heading = heading ? this.field(heading) : null;
      this.agents.active = active ? this.field(active) : null;
      this.numAgents = this.agents.x.size;
    }
    this.hasPicture = this.layouts.some(({ layout }) => layout.marks.length > 0);
  }

  /** Returns the field of a track. */
  field(track) {
    if (!this.fields.has(track)) this.fields.set(track, decode(track, this.data));
    return this.fields.get(track);
  }

  prepareLayouts() {
    this.layouts = (this.header.layouts ?? []).map(splitLayout);
    this.layoutOfFrame = this.layouts.length ? this.field(this.header.layout).data : [];
    const counts = this.layouts.map(() => 0);
    this.rowOfFrame = Array.from({ length: this.numFrames }, (_, frame) => {
      const number = this.layoutOfFrame[this.layoutOfFrame.length === 1 ? 0 : frame];
      if (this.layouts.length && !(number in counts)) throw damaged(`Frame ${frame} has layout ${number}, which is missing.`);
      return this.layouts.length ? counts[number]++ : 0;
    });
  }

  /** Returns the layout of a frame, and the row of its tracks that belongs to the frame. */
  layoutAt(frame) {
    const number = this.layoutOfFrame[this.layoutOfFrame.length === 1 ? 0 : frame];
    return { parts: this.layouts[number], row: this.rowOfFrame[frame] };
  }

  /** Returns the frame of the scene at a frame of the clock: a shorter scene stays at its end. */
  clamp(frame) {
    return Math.min(Math.max(frame, 0), this.numFrames - 1);
  }

  roleOf(agent, frame) {
    return this.agents ? this.agents.role.row(frame)[agent] : 0;
  }

  isActive(agent, frame) {
    return this.agents?.active ? this.agents.active.row(frame)[agent] !== 0 : true;
  }

  nameOf(agent, frame) {
    return this.numAgents > 1 ? `${this.roleNames[this.roleOf(agent, frame)] ?? "agent"} ${agent}` : "agent";
  }

  /** Returns the position of an agent in pixels of the picture, or null where it is not drawn. */
  positionOf(agent, frame) {
    if (!this.agents || !this.layoutAt(frame).parts?.hasAgents) return null;
    const [x, y] = [this.agents.x.row(frame)[agent], this.agents.y.row(frame)[agent]];
    return Number.isFinite(x) && Number.isFinite(y) ? { x, y } : null;
  }

  /** Returns a track of the details at a step and an agent; null where there is none. */
  detail(name, agent, step) {
    const slot = this.details?.agents.indexOf(agent) ?? -1;
    if (slot < 0 || !this.details[name] || step >= this.numFrames - 1) return null;
    const field = this.field(this.details[name]);
    const size = field.size / this.details.agents.length;
    return field.row(step).subarray(slot * size, (slot + 1) * size);
  }

  /** Returns the components of the action that an agent takes after a frame; null where none is known. */
  actionOf(agent, frame) {
    const { actions } = this.header; // (T - 1, A, K)
    if (!actions || frame >= this.numFrames - 1) return this.detail("action", agent, frame);
    const field = this.field(actions);
    const size = field.size / this.rewards.size;
    return field.row(frame).subarray(agent * size, (agent + 1) * size);
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

  /** Returns the mean rewards of the agents of each role over frames. */
  meanRewards() {
    const means = this.roleNames.map(() => new Float64Array(this.numFrames).fill(NaN));
    for (let frame = 1; frame < this.numFrames; frame++) {
      const rewards = this.rewards.row(frame - 1);
      const roles = this.agents?.role.row(frame);
      const sums = means.map(() => 0);
      const counts = means.map(() => 0);
      for (let agent = 0; agent < rewards.length; agent++) {
        const role = roles ? roles[agent] : 0;
        sums[role] += rewards[agent];
        counts[role] += 1;
      }
      means.forEach((mean, role) => (mean[frame] = counts[role] ? sums[role] / counts[role] : NaN));
    }
    return means;
  }
}

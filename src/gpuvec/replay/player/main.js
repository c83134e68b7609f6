// Reads the replay in the page, starts the player, and offers what tests and scripts use.

import { byId } from "./dom.js";
import { inflate, showProblem } from "./loading.js";
import { Player } from "./player.js";
import { readScenes } from "./scene.js";

let player = null;

async function start() {
  const text = byId("replay-header")?.textContent ?? "";
  const scenes = readScenes(text, await inflate("replay-data"));
  const { start_frame: frame, about, autoplay } = JSON.parse(text);
  player = new Player(scenes, Array.isArray(about) ? about.filter(Array.isArray) : []);
  player.clock.setFrame(Number(frame) || 0);
  if (autoplay !== true || window.matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  player.clock.change({ isLooping: true });
  player.clock.toggle(true);
}

const ready = start();
ready.catch(showProblem);
window.addEventListener("error", ({ error }) => error && showProblem(error));
window.addEventListener("unhandledrejection", ({ reason }) => showProblem(reason));

/** What tests, and scripts in the console of a browser, read and control. Use it after `await gpuvecReplay.ready`. */
const api = {
  ready,
  get frame() {
    return player.clock.frame;
  },
  setFrame: (frame) => player.clock.setFrame(frame),
  play: () => player.clock.toggle(true),
  pause: () => player.clock.toggle(false),
  select: (scene, agent) => player.select(scene, agent),
  enlarge: (scene) => player.enlarge(scene),
  /** Returns the array of the track that a path such as "rewards" or "agents.x" names in the header of a scene. */
  values(scene, path) {
    const track = path.split(".").reduce((part, name) => part[name], player.scenes[scene].header);
    const { shape, data } = player.scenes[scene].field(track);
    return { shape, data: Array.from(data) };
  },
  /** What a page around the player hands to `restore` of the next replay. */
  get state() {
    const { clock: { frame, last, isPlaying, isLooping, speed }, selection, showTrails } = player;
    return { frame, last, isPlaying, isLooping, speed, selection, showTrails };
  },
  restore: (state) => player.restore(state),
  renderer: (scene) => (player.views[scene].renderer?.gl ? "webgl" : "2d"),
};
window.gpuvecReplay = Object.defineProperties(window.gpuvecReplay ?? {}, Object.getOwnPropertyDescriptors(api));

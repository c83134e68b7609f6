// Reads the replay in the page, builds the player, and connects its parts.

import { MANY_AGENTS } from "./agents.js";
import { Clock, SPEEDS } from "./clock.js";
import { byId, el, plural, prepareCanvas, setText } from "./dom.js";
import { Inspector } from "./inspector.js";
import { checkHeader, readScenes } from "./scene.js";
import { SceneView, sharedRewardRange } from "./sceneview.js";
import { drawEventSymbol, kindOf, Timeline } from "./timeline.js";
import { onThemeChange } from "./theme.js";
import { damaged, inflate, ReplayProblem } from "./tracks.js";

const MAX_LISTED_EVENTS = 200;
const NARROW = 760; // CSS pixels, as in style.css: the side panel covers the lower half
const JUMP = 10; // frames of an arrow key with shift

/** Shows a message in the place of the player. */
function showProblem(error) {
  const isExpected = error instanceof ReplayProblem;
  setText(byId("message-title"), isExpected ? error.title : "This replay cannot be shown");
  setText(byId("message-text"), isExpected ? error.message : `The player failed: ${error?.message ?? error}.`);
  byId("message").hidden = false;
  byId("app").hidden = true;
}

class Player {
  constructor(scenes) {
    this.scenes = scenes;
    this.selection = null;
    this.activeScene = 0;
    this.enlarged = null;
    // Trails of very many agents hide these, and are shown on demand.
    this.showTrails = scenes.every((scene) => scene.numAgents <= MANY_AGENTS);
    const numFrames = Math.max(...scenes.map((scene) => scene.numFrames));
    this.clock = new Clock(numFrames, scenes[0].header.fps || 10, () => this.draw());
    this.views = [];
  }

  build() {
    const { scenes, clock } = this;
    byId("message").hidden = true;
    byId("app").hidden = false;
    this.events = scenes.flatMap((scene) => scene.events).sort((a, b) => a.frame - b.frame);
    this.inspector = new Inspector(byId("inspector"), clock, (agent) => this.select(agent === null ? null : this.selection.scene, agent));
    this.timeline = new Timeline(byId("timeline"), scenes, clock, (event) => this.jumpTo(event));
    this.views = scenes.map((scene) => new SceneView(scene, this, sharedRewardRange(scene, scenes)));
    byId("scenes").append(...this.views.map((view) => view.node));
    byId("scenes").dataset.count = scenes.length;
    const names = [...new Set(scenes.map(({ header }) => header.env ?? header.title))].filter(Boolean);
    setText(byId("heading"), names.join(", ") || "Replay");
    setText(byId("summary"), `${plural(scenes.length, "scene")} · ${plural(clock.numFrames, "frame")}`);
    this.connect();
    this.listEvents();
    this.activate(0);
    onThemeChange(() => this.setTheme());
    this.draw();
  }

  connect() {
    const { clock } = this;
    byId("speed").append(...SPEEDS.map((speed) => el("option", { value: speed, textContent: `${speed}×` })));
    byId("speed").addEventListener("change", ({ target }) => clock.setSpeed(Number(target.value)));
    const actions = {
      first: () => clock.step(-clock.numFrames), back: () => clock.step(-1), play: () => clock.toggle(), forward: () => clock.step(1),
      loop: () => clock.setLooping(!clock.isLooping), trails: () => this.setTrails(!this.showTrails), "help-button": () => byId("help").showModal(),
    };
    for (const [id, action] of Object.entries(actions)) {
      byId(id).addEventListener("click", (event) => {
        action();
        if (event.detail) byId(id).blur(); // After a click of a pointer, the space key shall play and not repeat the click.
      });
    }
    byId("help").addEventListener("click", ({ target }) => target === byId("help") && target.close());
    byId("trails").hidden = !this.scenes.some((scene) => scene.agents);
    new ResizeObserver(([{ target }]) => document.body.style.setProperty("--dock", `${target.offsetHeight}px`)).observe(byId("dock"));
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const { target, key, shiftKey } = event;
    if (target.closest("select, input") || (target.closest("button, summary") && [" ", "Enter"].includes(key))) return;
    const { clock } = this;
    const actions = {
      " ": () => clock.toggle(), ArrowLeft: () => clock.step(shiftKey ? -JUMP : -1), ArrowRight: () => clock.step(shiftKey ? JUMP : 1),
      Home: () => clock.step(-clock.numFrames), End: () => clock.step(clock.numFrames), "+": () => clock.changeSpeed(1),
      "=": () => clock.changeSpeed(1), "-": () => clock.changeSpeed(-1), t: () => this.setTrails(!this.showTrails),
      l: () => clock.setLooping(!clock.isLooping), e: () => this.jumpToNext(1), E: () => this.jumpToNext(-1), f: () => this.enlarge(this.activeScene),
      a: () => this.selectNext(1), A: () => this.selectNext(-1), "?": () => byId("help").showModal(), Escape: () => this.close(),
    };
    const scene = Number(key) - 1;
    if (/^[1-9]$/.test(key) && this.scenes[scene]) {
      this.activate(scene);
      this.views[scene].node.scrollIntoView({ block: "nearest" });
    } else if (Object.hasOwn(actions, key)) actions[key]();
    else return;
    event.preventDefault();
  }

  /** Closes what was opened last: the side panel, or the enlarged scene. */
  close() {
    if (this.selection) this.select(null, null);
    else if (this.enlarged !== null) this.enlarge(this.enlarged);
  }

  activate(scene) {
    this.activeScene = scene;
    this.views.forEach((view, index) => view.node.classList.toggle("active", this.views.length > 1 && index === scene));
    if (this.enlarged !== null && this.enlarged !== scene) this.enlarge(scene);
  }

  /** Shows one scene alone, or all scenes if it is alone already. */
  enlarge(scene) {
    this.enlarged = this.enlarged === scene ? null : scene;
    byId("scenes").classList.toggle("single", this.enlarged !== null);
    this.views.forEach(({ node }, index) => (node.hidden = this.enlarged !== null && index !== this.enlarged));
    if (this.enlarged !== null && this.activeScene !== scene) this.activate(scene);
  }

  /** Selects an agent of a scene; null for none. */
  select(scene, agent) {
    this.selection = scene === null || agent === null ? null : { scene, agent };
    document.body.classList.toggle("has-selection", this.selection !== null);
    if (this.selection) {
      this.activate(scene);
      this.inspector.show(this.scenes[scene], agent);
      if (window.innerWidth <= NARROW) this.views[scene].node.scrollIntoView({ block: "start" });
    } else this.inspector.clear();
    this.draw();
  }

  selectNext(by) {
    const scene = this.scenes[this.activeScene];
    const current = this.selection?.scene === scene.index ? this.selection.agent : null;
    const agents = scene.details?.agents.length ? scene.details.agents : [...Array(scene.numAgents).keys()];
    const index = current === null ? (by > 0 ? -1 : 0) : agents.indexOf(current);
    this.select(scene.index, agents[(index + by + agents.length) % agents.length]);
  }

  setTrails(showTrails) {
    this.showTrails = showTrails;
    this.draw();
  }

  jumpTo(event) {
    this.clock.pause();
    this.clock.setFrame(event.frame);
    this.activate(event.scene);
    if (event.agents.length) this.select(event.scene, event.agents[0]);
    setText(byId("announcement"), `Frame ${event.frame}: ${event.text}`);
  }

  jumpToNext(direction) {
    const { frame } = this.clock;
    const later = this.events.filter((event) => (event.frame - frame) * direction > 0);
    const next = direction > 0 ? later[0] : later[later.length - 1];
    if (next) this.jumpTo(next);
  }

  listEvents() {
    const { events, scenes } = this;
    byId("events").hidden = !events.length;
    this.eventRows = events.slice(0, MAX_LISTED_EVENTS).map((event) => {
      const icon = el("canvas", { className: "icon", title: kindOf(event).name });
      const scene = scenes.length > 1 ? [el("span", { className: "number" }, `${event.scene + 1}`)] : [];
      const button = el("button", { onclick: () => this.jumpTo(event) }, icon, el("span", { className: "frame" }, `${event.frame}`), ...scene, el("span", { className: "text" }, event.text));
      return { event, icon, node: el("li", {}, button) };
    });
    byId("event-list").replaceChildren(...this.eventRows.map(({ node }) => node));
    setText(byId("event-count"), events.length > MAX_LISTED_EVENTS ? `first ${MAX_LISTED_EVENTS} of ${events.length.toLocaleString("en")}` : `${events.length}`);
    this.drawEventIcons();
  }

  drawEventIcons() {
    this.eventRows.forEach(({ event, icon }) => drawEventSymbol(prepareCanvas(icon, 16, 16), event, 8, 8));
  }

  setTheme() {
    this.views.forEach((view) => view.setTheme());
    this.inspector.charts.forEach((chart) => chart.drawCurves());
    this.timeline.drawTrack();
    this.drawEventIcons();
  }

  /** Shows the current frame and the state of the controls. */
  draw() {
    const { clock } = this;
    this.views.forEach((view) => view.draw(clock.frame));
    this.timeline.draw(clock.frame);
    this.inspector.draw(clock.frame);
    setText(byId("frame"), `${clock.frame}`);
    setText(byId("last-frame"), ` / ${clock.last}`);
    setText(byId("seconds"), `${(clock.frame / clock.framesPerSecond).toFixed(1)} s`);
    byId("play").classList.toggle("playing", clock.isPlaying);
    byId("play").setAttribute("aria-label", clock.isPlaying ? "Pause" : "Play");
    byId("loop").setAttribute("aria-pressed", clock.isLooping);
    byId("trails").setAttribute("aria-pressed", this.showTrails);
    byId("speed").value = clock.speed;
    this.eventRows?.forEach(({ event, node }) => node.classList.toggle("later", event.frame > clock.frame));
  }
}

/** Returns the field of the track that a path such as "rewards", "agents.x" or "state.speed" names in the header of a scene. */
function findField(scene, path) {
  const track = path.split(".").reduce((part, name) => part?.[name], scene.header);
  return track ? scene.field(track) : null;
}

function readAgents({ agents, numAgents }, frame) {
  if (!agents) return null;
  const row = (field) => (field ? Array.from(field.row(frame)) : null);
  const active = agents.active ? row(agents.active).map(Boolean) : Array(numAgents).fill(true);
  return { x: row(agents.x), y: row(agents.y), heading: row(agents.heading), role: row(agents.role), active };
}

async function start() {
  const [header, data] = ["replay-header", "replay-data"].map((id) => byId(id)?.textContent.trim());
  if (!header) throw damaged("It has no replay, or it ends before the replay begins.");
  let parsed;
  try {
    parsed = JSON.parse(header);
  } catch (error) {
    throw damaged(`Its header is not valid (${error.message}). Copy or download the file again.`);
  }
  checkHeader(parsed);
  const player = new Player(readScenes(parsed, await inflate(data ?? "")));
  player.build();
  return player;
}

let player = null;
const ready = start().then((started) => {
  player = started;
});
ready.catch(showProblem);
window.addEventListener("error", ({ error }) => error && showProblem(error));
window.addEventListener("unhandledrejection", ({ reason }) => showProblem(reason));

/** What tests, and scripts in the console of a browser, read and control. Use it after `await gpuvecReplay.ready`. */
window.gpuvecReplay = Object.freeze({
  ready,
  get frame() {
    return player.clock.frame;
  },
  setFrame: (frame) => player.clock.setFrame(frame),
  play: () => player.clock.play(),
  pause: () => player.clock.pause(),
  select: (scene, agent) => player.select(scene, agent),
  agentsAt: (scene, frame) => readAgents(player.scenes[scene], frame),
  values(scene, path) {
    const field = findField(player.scenes[scene], path);
    return field && { shape: [...field.shape], data: Array.from(field.data) };
  },
  /** What a page around the player hands to `restore` of the next replay. */
  get state() {
    const { clock, selection, showTrails, enlarged } = player;
    const { frame, last, isPlaying, isLooping, speed } = clock;
    return { frame, last, isPlaying, isLooping, speed, selection, showTrails, enlarged };
  },
  restore({ isLooping, speed, selection, showTrails, enlarged, frame }) {
    const { scenes, clock } = player;
    clock.setLooping(isLooping);
    clock.setSpeed(speed);
    player.setTrails(showTrails);
    if (scenes[enlarged]) player.enlarge(enlarged);
    if (selection?.agent < scenes[selection?.scene]?.numAgents) player.select(selection.scene, selection.agent);
    clock.setFrame(frame);
  },
  renderer: (scene) => (player.views[scene].points?.gl ? "webgl" : "2d"),
  measureFps: (seconds) => player.clock.measure(seconds),
});

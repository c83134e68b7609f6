// The player: scenes with one clock, what is selected, and all that keys and buttons do.

import { MANY_AGENTS } from "./agents.js";
import { Clock, SPEEDS } from "./clock.js";
import { byId, el, setText } from "./dom.js";
import { Inspector } from "./inspector.js";
import { chooseLayout } from "./layout.js";
import { SceneView } from "./sceneview.js";
import { onThemeChange } from "./theme.js";
import { eventSymbol, Timeline } from "./timeline.js";

const JUMP = 10; // frames of an arrow key with shift
const NARROW = 760; // CSS pixels; the style sheet has the same width

export class Player {
  /** `about` has the title and the text of paragraphs that are shown beside the scenes. */
  constructor(scenes, about = []) {
    const events = scenes.flatMap((scene) => scene.events).sort((a, b) => a.frame - b.frame);
    Object.assign(this, { scenes, events, selection: null, enlarged: null, views: [] });
    // Trails of very many agents hide these, and those on a map of cells hide the map: they are shown on demand.
    this.showTrails = scenes.every((scene) => scene.numAgents <= MANY_AGENTS && !scene.hasMap);
    const numFrames = Math.max(...scenes.map((scene) => scene.numFrames));
    const clock = new Clock(numFrames, scenes[0].header.fps || 10, () => this.draw());
    Object.assign(this, { clock, actions: this.makeActions(clock) });
    this.inspector = new Inspector(byId("inspector"), clock, (agent) => this.select(this.selection.scene, agent));
    this.timeline = new Timeline(byId("timeline"), scenes, clock, (event) => this.jumpTo(event));
    byId("message").hidden = true;
    byId("app").hidden = false;
    this.writeTexts();
    this.writeAbout(about);
    this.listEvents();
    this.connect();
    this.views = scenes.map((scene) => new SceneView(scene, this));
    byId("scenes").append(...this.views.map(({ node }) => node));
    new ResizeObserver(() => this.arrange()).observe(byId("scenes"));
    // The only agent of a scene needs no click, unless its panel would cover the picture of a narrow page, or follow a text.
    this.select(scenes[0].numAgents === 1 && window.innerWidth > NARROW && !about.length ? 0 : null, 0);
  }

  writeAbout(about) {
    const node = byId("about");
    const paragraphs = about.map(([title, text]) => el("p", {}, el("b", {}, `${title}`), ` ${text}`));
    const others = about.slice(2).map(([title]) => title).join(", ");
    const more = el("span", { className: "more", hidden: !others }, `${others} …`); // while these paragraphs are closed
    node.querySelector("summary").append(...paragraphs.slice(0, 2), more);
    node.append(...paragraphs.slice(2));
    Object.assign(node, { hidden: !about.length, open: window.innerWidth > NARROW });
  }

  /** Shows one scene alone, or all scenes for null. */
  enlarge(scene) {
    this.enlarged = this.scenes.length > 1 && window.innerWidth > NARROW ? scene : null;
    this.arrange();
  }

  /** Gives pictures the size with which all visible scenes fit into the page, if they all have one. */
  arrange() {
    const visible = this.views.filter(({ scene }) => [null, scene.index].includes(this.enlarged));
    this.views.forEach((view) => view.show(visible.includes(view), this.enlarged !== null));
    const node = byId("scenes");
    const { paddingLeft, paddingRight, paddingTop, paddingBottom } = getComputedStyle(node);
    const [width, height] = [
      node.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight),
      node.clientHeight - parseFloat(paddingTop) - parseFloat(paddingBottom),
    ];
    const canFill = window.innerWidth > NARROW && visible.every(({ scene }) => scene.hasPicture);
    const layout = canFill ? chooseLayout(visible.map((view) => view.shape), width, height) : null;
    node.classList.toggle("fill", layout !== null);
    node.classList.toggle("beside", layout?.isBeside ?? false);
    for (const name of ["columns", "rows"]) node.style.setProperty(`--${name}`, layout?.[name] ?? 1);
    visible.forEach((view, k) => view.picture?.style.setProperty("--width", `${Math.floor(layout?.widths[k] ?? 0)}px`));
  }

  writeTexts() {
    const { scenes, clock } = this;
    setText(byId("last-frame"), ` / ${clock.last}`);
    const target = scenes.some(({ agents }) => agents) ? "an agent" : "a scene";
    setText(byId("hint"), `Click ${target} to see rewards, actions and observations.`);
    byId("scenes").dataset.count = scenes.length;
    byId("trails").hidden = !scenes.some(({ agents }) => agents);
    byId("speed").append(...SPEEDS.map((speed) => el("option", { value: speed, textContent: `${speed}×` })));
  }

  /** Returns what keys do, and buttons of the page whose data-key names the key. */
  makeActions(clock) {
    return {
      " ": () => clock.toggle(), Home: () => clock.step(-clock.numFrames), End: () => clock.step(clock.numFrames),
      ArrowLeft: (shiftKey) => clock.step(shiftKey ? -JUMP : -1), ArrowRight: (shiftKey) => clock.step(shiftKey ? JUMP : 1),
      "+": () => clock.changeSpeed(1), "=": () => clock.changeSpeed(1), "-": () => clock.changeSpeed(-1),
      l: () => clock.change({ isLooping: !clock.isLooping }),
      t: () => {
        this.showTrails = !this.showTrails;
        this.draw();
      },
      e: () => this.jumpToNext(1), E: () => this.jumpToNext(-1), a: () => this.selectNext(1), A: () => this.selectNext(-1),
      "?": () => byId("help").showModal(),
      Escape: () => (this.enlarged === null ? this.select(null, null) : this.enlarge(null)),
    };
  }

  connect() {
    const { clock, actions } = this;
    byId("speed").addEventListener("change", ({ target }) => clock.change({ speed: Number(target.value) }));
    for (const button of document.querySelectorAll("[data-key]")) {
      button.addEventListener("click", ({ detail }) => {
        actions[button.dataset.key]();
        if (detail) button.blur(); // After a click of a pointer, the space key shall play and not repeat the click.
      });
    }
    byId("help").addEventListener("click", ({ target }) => target === byId("help") && target.close());
    document.addEventListener("keydown", (event) => this.onKey(event));
    onThemeChange(() => this.views.forEach((view) => view.setTheme()));
  }

  onKey(event) {
    const { target, key, shiftKey } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open || target.closest("select")) return;
    if (target.closest("button") && [" ", "Enter"].includes(key)) return;
    if (!Object.hasOwn(this.actions, key)) return;
    this.actions[key](shiftKey);
    event.preventDefault();
  }

  /** Selects an agent of a scene; null for none. */
  select(scene, agent) {
    this.selection = scene === null || agent === null ? null : { scene, agent };
    document.body.classList.toggle("has-selection", this.selection !== null);
    if (this.selection) this.inspector.show(this.scenes[scene], agent);
    else this.inspector.close();
    this.draw();
  }

  /** Selects the next or previous agent of all scenes, of those with details if a scene has any. */
  selectNext(by) {
    const agents = this.scenes.flatMap(({ index, details, numAgents }) =>
      (details.agents.length ? details.agents : [...Array(numAgents).keys()]).map((agent) => ({ scene: index, agent })));
    const { scene, agent } = this.selection ?? {};
    const current = agents.findIndex((other) => other.scene === scene && other.agent === agent);
    const next = agents.at((current < 0 && by < 0 ? -1 : current + by) % agents.length);
    this.select(next.scene, next.agent);
  }

  jumpTo(event) {
    this.clock.toggle(false);
    this.clock.setFrame(event.frame);
    if (event.agents.length) this.select(event.scene, event.agents[0]);
    setText(byId("announcement"), `Frame ${event.frame}: ${event.text}`);
  }

  jumpToNext(direction) {
    const { frame } = this.clock;
    const others = this.events.filter((event) => (event.frame - frame) * direction > 0);
    if (others.length) this.jumpTo(others.at(direction > 0 ? 0 : -1));
  }

  listEvents() {
    const rows = this.events.map((event) => {
      const number = this.scenes.length > 1 ? [el("span", { className: "number" }, `${event.scene + 1}`)] : [];
      const texts = [el("span", { className: "frame" }, `${event.frame}`), ...number, el("span", {}, event.text)];
      return el("li", {}, el("button", { onclick: () => this.jumpTo(event) }, eventSymbol(event), ...texts));
    });
    byId("event-list").append(...rows);
    byId("events").hidden = !rows.length;
    setText(byId("event-count"), rows.length.toLocaleString("en"));
  }

  /** Takes the state of another player. */
  restore({ isLooping, speed, selection, showTrails, frame }) {
    this.showTrails = showTrails;
    this.clock.change({ isLooping, speed });
    if (selection?.agent < this.scenes[selection?.scene]?.numAgents) this.select(selection.scene, selection.agent);
    this.clock.setFrame(frame);
  }

  /** Shows the current frame and the state of the controls. */
  draw() {
    const { clock } = this;
    this.views.forEach((view) => view.draw(clock.frame));
    this.timeline.draw(clock.frame);
    this.inspector.draw(clock.frame);
    setText(byId("frame"), `${clock.frame}`);
    setText(byId("seconds"), `${(clock.frame / clock.framesPerSecond).toFixed(1)} s`);
    byId("play").classList.toggle("playing", clock.isPlaying);
    byId("play").setAttribute("aria-label", clock.isPlaying ? "Pause" : "Play");
    byId("loop").setAttribute("aria-pressed", clock.isLooping);
    byId("trails").setAttribute("aria-pressed", this.showTrails);
    byId("speed").value = clock.speed;
  }
}

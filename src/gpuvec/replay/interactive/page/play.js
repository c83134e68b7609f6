// The page of a game: sends the action of the keys that are down to the server, once for each step, and draws what it answers.

import { clearCanvas, drawSelection, PathRenderer, symbolRadius } from "/player/agents.js";
import { byId, el, formatNumber, setText } from "/player/dom.js";
import { drawMarks } from "/player/marks.js";
import { Scene } from "/player/scene.js";
import { onThemeChange, sceneColours } from "/player/theme.js";

const MAX_PIXEL_RATIO = 3;
const KEY_NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
const token = document.querySelector("meta[name=token]").content;
const pageId = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

let game = null; // the description of the game
let frame = null; // the last answer of the server
let scene = null;
let state = "connecting"; // or ready, playing, paused, ended, elsewhere, lost
let timer = null;
let isStepping = false;
let held = []; // indices of the controls that are down, in the order in which they were pressed
let pressed = []; // those that were pressed since the last step
let last = []; // the last value of each component

const number = (value) => (value === null ? "–" : formatNumber(value));
const isWaiting = () => game.has_turns || byId("waits").checked;

async function post(path, action = null) {
  const headers = { "Content-Type": "application/json", "X-Gpuvec-Token": token };
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify({ page: pageId, action }) });
  if (answer.ok) return answer.json();
  throw Object.assign(new Error(await answer.text()), { status: answer.status });
}

function showMessage(title, text = "", button = "") {
  byId("message").hidden = !title;
  setText(byId("message-title"), title);
  setText(byId("message-text"), text);
  setText(byId("message-button"), button);
  byId("message-button").hidden = !button;
}

function setState(next) {
  state = next;
  [held, pressed] = [[], []];
  setText(byId("pause"), state === "paused" ? "Continue" : "Pause");
  byId("pause").disabled = !["playing", "paused"].includes(state);
  if (state === "ready") showMessage("Ready", "Press a key of an action below, or space.", "Start");
  else if (state === "paused") showMessage("Paused", "Press space to continue.", "Continue");
  else if (state === "ended") showMessage(frame.ending, `Score ${number(frame.return)}. Press space for a new episode.`, "New episode");
  else if (state === "elsewhere") showMessage("The game continues in another page", "One page plays at a time.", "Play here");
  else if (state === "playing") showMessage("");
  showControls();
  if (state === "playing") schedule(0);
}

function showProblem(error) {
  if (error.status === 422) return setText(byId("note"), error.message);
  if (error.status === 409) return setState("elsewhere");
  setState("lost");
  if (error.status) return showMessage("The server refuses", error.message, "Try again");
  return showMessage("No connection", "The command gpuvec play has ended. Start it again, and load this page again.", "Try again");
}

/** Begins an episode, and takes the game over from another page. */
async function begin(next = "ready") {
  try {
    const answer = await post("/begin");
    if (!game) build(answer.game);
    last = [...game.idle];
    setText(byId("note"), "");
    show(answer.frame);
    setState(next);
  } catch (error) {
    showProblem(error);
  }
}

function build(description) {
  game = description;
  document.title = `Play ${game.env}`;
  setText(byId("env"), game.env);
  setText(byId("players"), [game.you, game.others].filter(Boolean).join(" "));
  setText(byId("max-steps"), game.max_steps ? ` / ${game.max_steps}` : "");
  setText(byId("threshold"), number(game.threshold));
  byId("goal").hidden = game.threshold === null;
  byId("waits-label").hidden = byId("speed-label").hidden = game.has_turns;
  byId("controls").append(...game.controls.map((control, index) => {
    const keys = control.keys.map((key) => KEY_NAMES[key] ?? key.toUpperCase()).join(" ");
    const button = el("button", { title: control.name }, el("span", {}, control.name), el("small", {}, keys));
    button.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // The keys stay with the page.
      button.setPointerCapture(event.pointerId);
      press(index);
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) button.addEventListener(name, () => release(index));
    button.addEventListener("click", ({ detail }) => {
      if (detail) return; // a pointer, as above
      press(index);
      release(index);
    });
    return button;
  }));
}

/** Returns the action for the next step; null while others are to move, and undefined if the game waits for the person. */
function chooseAction() {
  if (!frame.is_your_turn) return null;
  const down = [...held, ...pressed].filter((index) => frame.allowed[index]);
  if (isWaiting() && !pressed.some((index) => frame.allowed[index])) return undefined;
  const action = game.idle.map((value, component) => value ?? last[component]);
  for (const index of down) {
    const { component, value } = game.controls[index];
    action[component] = last[component] = value;
  }
  return action.some((value) => value === null) ? undefined : action;
}

function schedule(delay) {
  clearTimeout(timer);
  timer = setTimeout(step, delay);
}

async function step() {
  if (state !== "playing" || isStepping) return;
  const began = performance.now();
  const action = chooseAction();
  pressed = [];
  if (action !== undefined) {
    isStepping = true;
    try {
      const answer = await post("/step", action);
      show(answer.frame);
      if (state === "playing" && frame.ending) setState("ended");
    } catch (error) {
      showProblem(error);
    }
    isStepping = false;
  }
  const period = 1000 / (game.fps * Number(byId("speed").value));
  if (state === "playing") schedule(Math.max(0, period - (performance.now() - began)));
}

function show(next) {
  frame = next;
  scene = new Scene(frame.scene, 0, Uint8Array.from(atob(frame.data), (character) => character.charCodeAt(0)));
  setText(byId("score"), number(frame.return));
  setText(byId("steps"), frame.steps.toLocaleString("en"));
  setText(byId("best"), number(frame.best));
  byId("others-score").hidden = frame.mean_return_of_others === null;
  setText(byId("mean-of-others"), number(frame.mean_return_of_others));
  const turn = !game.has_turns || frame.ending ? "" : frame.is_your_turn ? "Your turn." : "The other is to move.";
  setText(byId("note"), frame.is_active ? turn : "Your agent takes no part any more; the others play on.");
  draw();
  showControls();
}

function showControls() {
  [...byId("controls").children].forEach((button, index) => {
    button.classList.toggle("down", held.includes(index));
    button.disabled = frame?.allowed[index] === false;
  });
}

function draw() {
  if (!scene) return;
  const { width, height } = scene.header;
  const stage = byId("stage");
  stage.style.setProperty("--aspect", width / height);
  const ratio = Math.min(window.devicePixelRatio || 1, MAX_PIXEL_RATIO);
  const size = { width: Math.round(stage.clientWidth * ratio), height: Math.round(stage.clientHeight * ratio) };
  const canvases = ["below", "agents", "above"].map(byId);
  for (const canvas of canvases) {
    if (canvas.width !== size.width || canvas.height !== size.height) Object.assign(canvas, size);
  }
  const [scale, pixel, colours] = [size.width / width, width / stage.clientWidth, sceneColours(scene)];
  const [layout] = scene.layoutOfFrame;
  const below = clearCanvas(canvases[0], scale);
  below.fillStyle = colours.paper;
  below.fillRect(0, 0, width, height);
  drawMarks(below, scene, layout, layout.before, colours, pixel);
  clearCanvas(canvases[1], scale);
  if (layout.hasAgents) new PathRenderer(canvases[1], scene).draw(0, { scale, radius: symbolRadius(scene, 0, pixel), colours });
  const above = clearCanvas(canvases[2], scale);
  drawMarks(above, scene, layout, layout.after, colours, pixel);
  if (layout.hasAgents && game.agent !== null) drawSelection(above, scene, 0, game.agent, colours, pixel);
}

function press(index) {
  if (state === "ready") setState("playing");
  if (state !== "playing") return;
  if (!frame.allowed[index]) setText(byId("note"), `${game.controls[index].name} is not allowed now.`);
  held = [...held.filter((other) => other !== index), index];
  pressed.push(index);
  showControls();
  if (isWaiting() && frame.is_your_turn) schedule(0);
}

function release(index) {
  held = held.filter((other) => other !== index);
  showControls();
}

/** Does what the button of the message says, which space does too. */
function proceed() {
  if (state === "ready" || state === "paused") setState("playing");
  else if (state === "playing") setState("paused");
  else if (state === "ended") begin("playing");
  else if (state !== "connecting") begin();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select") || !game) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.target.closest("button, input") && [" ", "Enter"].includes(key)) return;
  const index = game.controls.findIndex(({ keys }) => keys.includes(key));
  if (index < 0 && ![" ", "r"].includes(key)) return;
  event.preventDefault();
  if (event.repeat) return;
  if (index >= 0) press(index);
  else if (key === " ") proceed();
  else begin("playing");
});
document.addEventListener("keyup", ({ key }) => {
  const index = game?.controls.findIndex(({ keys }) => keys.includes(key.length === 1 ? key.toLowerCase() : key)) ?? -1;
  if (index >= 0) release(index);
});
const pause = () => state === "playing" && !game.has_turns && setState("paused");
window.addEventListener("blur", pause);
document.addEventListener("visibilitychange", () => document.hidden && pause());
const onClick = (id, action) => byId(id).addEventListener("click", ({ detail }) => {
  action();
  if (detail) byId(id).blur(); // After a click of a pointer, the space key belongs to the game.
});
onClick("message-button", proceed);
onClick("pause", proceed);
onClick("restart", () => begin("playing"));
for (const id of ["speed", "waits"]) byId(id).addEventListener("change", ({ target }) => target.blur());
onThemeChange(draw);
new ResizeObserver(draw).observe(byId("stage"));
begin();

/** What tests read. */
window.gpuvecPlay = {
  get state() {
    return state;
  },
  get frame() {
    return frame;
  },
};

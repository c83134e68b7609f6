// Starts the player that a page stores compressed. The policy of the page allows its style and its script by their hashes.

import { inflate, showProblem } from "./loading.js";

async function startPlayer() {
  const { style, script } = JSON.parse(new TextDecoder().decode(await inflate("replay-player")));
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  document.head.append(Object.assign(document.createElement("script"), { textContent: script }));
  return window.gpuvecReplay.ready;
}

const ready = new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve)).then(startPlayer);
ready.catch(showProblem);
/** The script of the player adds all that tests and scripts use. */
window.gpuvecReplay = { ready };

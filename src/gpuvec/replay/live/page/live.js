// The page of a live view: asks the server for the state of the run, and shows the newest replay in a frame of its own.

const SECONDS_BETWEEN_REQUESTS = 1;
const CHECK_PERIOD = 100; // [ms]
const byId = (id) => document.getElementById(id);

let status = null; // the last answer of the server
let shown = null; // { iteration, frame } of the replay that is shown
let loading = null; // that of the replay that replaces it
let isFollowing = true;
let chosen = null; // the iteration that the user chose
let lastFrame = -1;
let failed = null; // the iteration of a replay that cannot be shown

function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

function formatNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-3 ? value.toExponential(1) : size >= 100 ? value.toFixed(1) : value.toPrecision(3);
  return text.replace("e+", "e").replaceAll("-", "−");
}

function formatSeconds(seconds) {
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.round(seconds) % 60];
  return h ? `${h} h ${m} min` : m ? `${m} min ${s} s` : `${s} s`;
}

/** Returns a curve as a path in a box of 100 x 20, upwards. */
function curvePath(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = (k) => (100 * k) / Math.max(values.length - 1, 1);
  const y = (value) => (high > low ? 20 - (20 * (value - low)) / (high - low) : 10);
  return values.map((value, k) => `${k ? "L" : "M"}${x(k).toFixed(2)} ${y(value).toFixed(2)}`).join("");
}

function showReturns(returns) {
  if (byId("returns").children.length !== returns.length) {
    const parts = returns.map(() => {
      const part = document.createElement("div");
      part.innerHTML = '<dt></dt><dd><b></b><svg viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path/></svg></dd>';
      return part;
    });
    byId("returns").replaceChildren(...parts);
  }
  returns.forEach(({ role, value, curve }, k) => {
    const part = byId("returns").children[k];
    part.querySelector("dt").textContent = role ? `Return of ${role}` : "Return";
    part.querySelector("b").textContent = formatNumber(value);
    part.querySelector("path").setAttribute("d", curvePath(curve));
  });
}

function showMetrics(metrics) {
  byId("more").hidden = !metrics.length;
  const rows = metrics.map(({ name, value }) => {
    const [row, term, number] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    term.textContent = name;
    number.textContent = formatNumber(value);
    row.append(term, number);
    return row;
  });
  byId("metrics").replaceChildren(...rows);
}

const STATES = { running: "Training", complete: "Complete", stopped: "Stopped", damaged: "Damaged", lost: "No connection" };

function showState(state) {
  byId("state").dataset.state = state;
  setText("state-text", STATES[state] ?? state);
}

function showStatus() {
  const { name, env, algorithm, seed, state, num_iterations, progress, returns, metrics } = status;
  const { iteration = 0, steps = 0, seconds = 0 } = progress;
  const share = num_iterations ? iteration / num_iterations : 0;
  document.title = `${Math.floor(100 * share)} % of ${env}`;
  showState(state);
  setText("env", `${algorithm.toUpperCase()} on ${env}`);
  setText("run-name", `seed ${seed} · ${name}`);
  byId("run-name").title = name;
  setText("steps", steps.toLocaleString("en"));
  setText("share", num_iterations ? `${Math.floor(100 * share)} %` : "");
  byId("progress").style.transform = `scaleX(${Math.min(share, 1)})`;
  setText("speed", progress.steps_per_second ? Math.round(progress.steps_per_second).toLocaleString("en") : "–");
  setText("left", state === "running" && share > 0 ? formatSeconds((seconds / share) * (1 - share)) : "–");
  showReturns(returns);
  showMetrics(metrics);
}

function showChoice() {
  const { replays } = status;
  const select = byId("replay");
  if (replays.length && select.dataset.replays !== replays.join()) {
    select.dataset.replays = replays.join();
    const options = [...replays].reverse().map((iteration, k) => {
      return new Option(`iteration ${iteration.toLocaleString("en")}${k ? "" : " (newest)"}`, iteration);
    });
    select.replaceChildren(...options);
    select.disabled = false;
  }
  if (shown && document.activeElement !== select) select.value = shown.iteration;
  byId("follow").setAttribute("aria-pressed", isFollowing);
}

function showMessage(title, text) {
  setText("message-title", title);
  setText("message-text", text);
}

/** Loads a replay in a hidden frame, and shows it in place of the one before as soon as its player is ready. */
async function load(iteration) {
  loading = { iteration, frame: document.createElement("iframe") };
  const { frame } = loading;
  const path = `/replay/${iteration}.html`;
  Object.assign(frame, { src: path, title: `Replay of iteration ${iteration}`, className: "loading" });
  const isLoaded = new Promise((resolve) => frame.addEventListener("load", resolve, { once: true }));
  document.querySelector("main").append(frame);
  await isLoaded;
  let player;
  try {
    player = frame.contentWindow.gpuvecReplay;
    if (!player) throw new Error(frame.contentDocument?.body.textContent || "The server does not answer.");
    await player.ready;
  } catch (error) {
    frame.remove();
    [loading, failed] = [null, iteration];
    showMessage("This replay cannot be shown", error.message);
    return;
  }
  const before = shown?.frame.contentWindow.gpuvecReplay.state;
  const hadEnded = !before || before.isPlaying || before.frame === before.last;
  if (before) player.restore({ ...before, frame: hadEnded ? 0 : before.frame });
  else player.restore({ ...player.state, isLooping: true });
  frame.classList.remove("loading");
  shown?.frame.remove();
  [shown, loading, lastFrame] = [loading, null, -1];
  byId("message").hidden = true;
  if (hadEnded) player.play();
  showChoice();
}

/** Returns whether the replay that is shown may be replaced: it is paused, or it has just ended or begun again. */
function mayReplace() {
  if (!shown) return true;
  const { frame, last, isPlaying } = shown.frame.contentWindow.gpuvecReplay.state;
  const hasEnded = !isPlaying || frame === last || frame < lastFrame;
  lastFrame = frame;
  return hasEnded;
}

function update() {
  if (!status || loading) return;
  const { replays } = status;
  const isReplaceable = mayReplace();
  const wanted = isFollowing ? replays[replays.length - 1] : chosen;
  if (wanted === undefined || wanted === null || wanted === shown?.iteration || wanted === failed) return;
  if (isReplaceable || !isFollowing) load(wanted);
}

async function request() {
  try {
    const answer = await fetch("/status.json");
    if (!answer.ok) throw new Error(await answer.text());
    status = await answer.json();
    showStatus();
    showChoice();
    if (!shown && !loading && failed === null) {
      const isRunning = status.state === "running";
      const text = isRunning
        ? "A process beside the training compiles the environment and records it. Only a training with --watch saves replays."
        : "The training has ended and has saved none.";
      showMessage(isRunning ? "Waiting for the first replay" : "This run has no replay", text);
    }
  } catch {
    showState("lost");
    setText("left", "–");
  }
  setTimeout(request, 1000 * SECONDS_BETWEEN_REQUESTS);
}

byId("follow").addEventListener("click", () => {
  isFollowing = !isFollowing;
  chosen = shown?.iteration ?? null;
  showChoice();
});
byId("replay").addEventListener("change", ({ target }) => {
  chosen = Number(target.value);
  failed = null;
  isFollowing = status.replays[status.replays.length - 1] === chosen;
  target.blur();
  update();
  showChoice();
});
setInterval(update, CHECK_PERIOD);
request();

/** What tests read. */
window.gpuvecLive = {
  get iteration() {
    return shown?.iteration ?? null;
  },
  get failed() {
    return failed;
  },
  get player() {
    return shown?.frame.contentWindow.gpuvecReplay ?? null;
  },
};

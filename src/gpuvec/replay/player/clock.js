// The clock that all scenes share. Its time is a number of frames, so that scenes of one seed stay in step.

export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

const MAX_ELAPSED = 250; // [ms]

export class Clock {
  /** `onchange` is called after each change of frame, speed, or whether the clock runs. */
  constructor(numFrames, framesPerSecond, onchange) {
    Object.assign(this, { numFrames, framesPerSecond, onchange });
    this.frame = 0;
    this.speed = 1;
    this.isPlaying = false;
    this.isLooping = false;
    this.onFrame = (now) => this.advance(now);
  }

  get last() {
    return this.numFrames - 1;
  }

  setFrame(frame) {
    const next = Math.min(Math.max(Math.round(frame), 0), this.last);
    this.time = next;
    if (next === this.frame) return;
    this.frame = next;
    this.onchange();
  }

  step(frames) {
    this.pause();
    this.setFrame(this.frame + frames);
  }

  play() {
    if (this.isPlaying) return;
    if (this.frame === this.last) this.setFrame(0);
    Object.assign(this, { isPlaying: true, time: this.frame, now: performance.now() });
    this.onchange();
    requestAnimationFrame(this.onFrame);
  }

  pause() {
    if (!this.isPlaying) return;
    this.isPlaying = false;
    this.onchange();
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.onchange();
  }

  changeSpeed(steps) {
    const index = SPEEDS.indexOf(this.speed) + steps;
    this.setSpeed(SPEEDS[Math.min(Math.max(index, 0), SPEEDS.length - 1)]);
  }

  setLooping(isLooping) {
    this.isLooping = isLooping;
    this.onchange();
  }

  advance(now) {
    if (!this.isPlaying) return;
    const elapsed = Math.min(Math.max(now - this.now, 0), MAX_ELAPSED); // A hidden page has no refreshes.
    this.time += (elapsed / 1000) * this.framesPerSecond * this.speed;
    this.now = now;
    let frame = Math.floor(this.time);
    if (frame > this.last && this.isLooping) {
      this.time %= this.numFrames;
      frame = Math.floor(this.time);
    }
    if (frame !== this.frame) {
      this.frame = Math.min(frame, this.last);
      if (frame >= this.last && !this.isLooping) this.isPlaying = false;
      this.onchange();
    }
    requestAnimationFrame(this.onFrame);
  }

  /** Shows a frame in each refresh of the screen for some seconds, and returns how many of them a second were shown. */
  async measure(seconds) {
    this.pause();
    const nextRefresh = () => new Promise(requestAnimationFrame);
    const begin = await nextRefresh();
    let count = 0;
    let now = begin;
    while (now - begin < 1000 * seconds) {
      this.setFrame((this.frame + 1) % this.numFrames);
      count += 1;
      now = await nextRefresh();
    }
    return (1000 * count) / (now - begin);
  }
}

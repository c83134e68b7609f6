// The clock that all scenes share. Its time is a number of frames, so that scenes of one seed stay in step.

export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

const MAX_ELAPSED = 250; // [ms]
const HOLD = 1; // seconds for which a loop stays at the last frame

export class Clock {
  /** `onchange` is called after each change of frame, speed, or whether the clock runs. */
  constructor(numFrames, framesPerSecond, onchange) {
    Object.assign(this, { numFrames, framesPerSecond, onchange, frame: 0, speed: 1, isPlaying: false, isLooping: false });
  }

  get last() {
    return this.numFrames - 1;
  }

  /** Returns the part of the time that is over at a frame, from 0 to 1. */
  shareOf(frame) {
    return frame / Math.max(this.last, 1);
  }

  setFrame(frame) {
    this.time = Math.min(Math.max(Math.round(frame), 0), this.last);
    if (this.time !== this.frame) this.change({ frame: this.time });
  }

  step(frames) {
    this.change({ isPlaying: false });
    this.setFrame(this.frame + frames);
  }

  toggle(isPlaying = !this.isPlaying) {
    if (isPlaying === this.isPlaying) return;
    if (isPlaying && this.frame === this.last) this.setFrame(0);
    this.change({ isPlaying, time: this.frame, now: performance.now() });
    if (isPlaying) requestAnimationFrame((now) => this.advance(now));
  }

  /** Takes the next higher or lower speed. */
  changeSpeed(by) {
    const index = SPEEDS.indexOf(this.speed) + by;
    this.change({ speed: SPEEDS[Math.min(Math.max(index, 0), SPEEDS.length - 1)] });
  }

  /** Sets some of `frame`, `speed`, `isPlaying` and `isLooping`. */
  change(values) {
    Object.assign(this, values);
    this.onchange();
  }

  advance(now) {
    if (!this.isPlaying) return;
    const elapsed = Math.min(Math.max(now - this.now, 0), MAX_ELAPSED); // A hidden page has no refreshes.
    this.now = now;
    this.time += (elapsed / 1000) * this.framesPerSecond * this.speed;
    if (this.isLooping) this.time %= this.numFrames + HOLD * this.framesPerSecond * this.speed;
    const frame = Math.min(Math.floor(this.time), this.last);
    if (frame !== this.frame) this.change({ frame, isPlaying: this.isLooping || frame < this.last });
    requestAnimationFrame((next) => this.advance(next));
  }
}

// Colours of pictures in the light and in the dark theme. The style sheet has those of the page.

/** Colours of roles and of curves (Okabe and Ito, 2008), which people with any colour vision can distinguish. */
export const COLOURS = ["#d55e00", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9"];

const NEUTRAL = 28; // The largest difference of the channels of a grey.
const MIN_BRIGHTNESS = 0.5; // of colours on dark paper
const WHITE = [255, 255, 255];
const DARK_PAPER = [30, 33, 40];
const DARK_INK = [226, 229, 234];

const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
export const onThemeChange = (listener) => darkScheme.addEventListener("change", listener);

/** Returns the channels of a colour "#rrggbb". */
export const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const format = (rgb) => `#${rgb.map((c) => Math.round(c).toString(16).padStart(2, "0")).join("")}`;
const mix = (a, b, share) => a.map((c, i) => c + (b[i] - c) * share);
const brightness = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
export const isGrey = (hex) => isNeutral(channels(hex));
const isNeutral = (rgb) => Math.max(...rgb) - Math.min(...rgb) <= NEUTRAL;

/** Returns a colour for white paper as it is legible on dark paper: greys are inverted, deep colours lighter. */
function onDarkPaper(rgb) {
  if (isNeutral(rgb)) return mix(DARK_INK, DARK_PAPER, brightness(rgb));
  return mix(rgb, WHITE, Math.max(0, (MIN_BRIGHTNESS - brightness(rgb)) / (1 - brightness(rgb))));
}

/** Returns whether what is filled is both black and white, such as the pieces of a game: inverting these would mislead. */
function hasBlackAndWhite(scene) {
  const used = new Set();
  const { palette, agents } = scene.header;
  for (const { layout, before, after } of scene.layouts) {
    const { data, size } = scene.field(layout.colours);
    for (const { mark, colour } of [...before, ...after]) {
      if (mark.kind === "cells") mark.palette.forEach((index) => used.add(index));
      else if (["polygon", "circle"].includes(mark.kind)) {
        for (let i = colour; i < data.length; i += size) used.add(data[i]);
      }
    }
  }
  const colours = [...[...used].map((index) => palette[index]), ...(agents?.colours ?? [])];
  const greys = colours.map(channels).filter(isNeutral).map(brightness);
  return greys.some((grey) => grey > 0.85) && greys.some((grey) => grey < 0.25);
}

/** Returns the colours of a scene: of its paper, its palette, the roles of its agents, inactive ones, and the selection. */
export function sceneColours(scene) {
  scene.isFaithful ??= hasBlackAndWhite(scene);
  const isOnDark = darkScheme.matches && !scene.isFaithful;
  const adapt = (hex) => (isOnDark ? format(onDarkPaper(channels(hex))) : hex);
  return {
    paper: isOnDark ? format(DARK_PAPER) : "#ffffff",
    ink: isOnDark ? "#ffffff" : "#111318",
    outline: scene.isFaithful ? "#808080" : "transparent", // of symbols in the legend, whose paper is not that of the picture
    inactive: isOnDark ? "#6d7380" : "#a9adb5",
    palette: (scene.header.palette ?? []).map(adapt),
    roles: (scene.header.agents?.colours ?? []).map(adapt),
  };
}

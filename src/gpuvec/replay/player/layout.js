// Arranges scenes so that their pictures are as large as the window allows.

const GAP = 16; // CSS pixels between scenes
const [PADDING_X, PADDING_Y, HEADER] = [34, 28, 40]; // of a scene, and the height of its header
const [CHART, LEGEND] = [96, 28]; // heights of what is below a picture
const FACTS_WIDTH = 176; // of what is beside a picture
const MIN_SIDE = 130; // of a picture; scenes with smaller ones are scrolled instead

/** Returns the width of a picture in a scene of some size, with its legend and curve below it or beside it. */
function pictureWidth({ aspect, hasLegend }, width, height, isBeside) {
  if (isBeside) return Math.min(width - FACTS_WIDTH, height * aspect);
  return Math.min(width, (height - CHART - (hasLegend ? LEGEND : 0)) * aspect);
}

/**
 * Returns {columns, rows, isBeside, widths} with the largest pictures in an area of CSS pixels; null if they are too small.
 * `pictures` has {aspect, hasLegend} of each scene, and `widths` are those of the pictures.
 */
export function chooseLayout(pictures, width, height) {
  let [best, bestArea] = [null, 0];
  for (let columns = 1; columns <= pictures.length; columns++) {
    const rows = Math.ceil(pictures.length / columns);
    const innerWidth = (width - GAP * (columns - 1)) / columns - PADDING_X;
    const innerHeight = (height - GAP * (rows - 1)) / rows - PADDING_Y - HEADER;
    for (const isBeside of [false, true]) {
      const widths = pictures.map((picture) => pictureWidth(picture, innerWidth, innerHeight, isBeside));
      const area = widths.reduce((sum, side, k) => sum + (side * side) / pictures[k].aspect, 0);
      const isLarge = widths.every((side, k) => Math.min(side, side / pictures[k].aspect) >= MIN_SIDE);
      if (isLarge && area > bestArea) [best, bestArea] = [{ columns, rows, isBeside, widths }, area];
    }
  }
  return best;
}

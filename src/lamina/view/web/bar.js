// The colour bar.

import { precise, ticks } from "./ticks.js";

export const TICKS_WIDTH = 78;

/** Draw the colours into a 2D context, high values on top. */
export function drawColours(context, rgba, reversed, x, y, width, height) {
  for (let row = 0; row < height; row++) {
    let share = 1 - row / Math.max(1, height - 1);
    if (reversed) share = 1 - share;
    const i = 4 * Math.round(share * 255);
    context.fillStyle = `rgb(${rgba[i]} ${rgba[i + 1]} ${rgba[i + 2]})`;
    context.fillRect(x, y + row, width, 1);
  }
}

export function drawTicks(context, low, high, ink, x, y, height, unit) {
  context.fillStyle = context.strokeStyle = ink;
  context.font = `${11 * unit}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  for (const tick of ticks(low, high)) {
    const at = y + (1 - (tick - low) / (high - low)) * (height - 1);
    context.fillRect(x + 3 * unit, at, 4 * unit, Math.max(1, unit / 1.5));
    context.fillText(precise(tick, high - low, 5), x + 11 * unit, Math.min(Math.max(at, y + 6 * unit), y + height - 6 * unit));
  }
}

/** Draw both into the two small canvases beside the picture. */
export function drawBar(colours, labels, rgba, reversed, low, high, ink) {
  const unit = window.devicePixelRatio || 1;
  for (const canvas of [colours, labels]) {
    canvas.width = Math.max(1, Math.round(canvas.clientWidth * unit));
    canvas.height = Math.max(1, Math.round(canvas.clientHeight * unit));
  }
  drawColours(colours.getContext("2d"), rgba, reversed, 0, 0, colours.width, colours.height);
  drawTicks(labels.getContext("2d"), low, high, ink, 0, 0, labels.height, unit);
}

// A picture to keep.

import { drawColours, drawTicks, TICKS_WIDTH } from "./bar.js";

const element = (id) => document.getElementById(id);

/** What is seen, with colour bar and title, as a canvas. */
export function picture(viewer) {
  viewer.draw();
  const unit = viewer.renderer.getPixelRatio();
  const made = document.createElement("canvas");
  made.width = viewer.canvas.width;
  made.height = viewer.canvas.height;
  const context = made.getContext("2d");
  context.drawImage(viewer.canvas, 0, 0);
  const ink = getComputedStyle(document.body).color;
  const height = Math.round(made.height * 0.4);
  const [x, y] = [made.width - (TICKS_WIDTH + 28) * unit, Math.round((made.height - height) / 2)];
  const { map, low, high } = viewer.scale;
  drawColours(context, viewer.mapBytes(map), viewer.reversed, x, y, 14 * unit, height);
  drawTicks(context, low, high, ink, x + 14 * unit, y, height, unit);
  context.font = `600 ${15 * unit}px system-ui, sans-serif`;
  context.fillText(element("title").textContent, 16 * unit, 24 * unit);
  if (viewer.surface.frames > 1) {
    context.font = `${13 * unit}px system-ui, sans-serif`;
    context.fillText(element("moment").textContent, 16 * unit, 46 * unit);
  }
  return made;
}

export function savePicture(viewer) {
  picture(viewer).toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${viewer.data.title.replace(/[^\p{L}\p{N}]+/gu, "-") || "lamina"}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000); // once it is saved
  });
}

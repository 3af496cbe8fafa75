// A picture to keep.

import { drawColours, drawTicks, TICKS_WIDTH } from "./bar.js";

/** What is seen, with colour bar and title, as a canvas. */
export function picture(viewer) {
  viewer.drawFinely();
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
  context.textBaseline = "alphabetic";
  context.font = `600 ${13 * unit}px system-ui, sans-serif`;
  const name = viewer.fieldName();
  const room = context.measureText(name).width + 16 * unit;
  context.fillText(name, Math.min(x, made.width - room), y - 10 * unit);
  context.font = `600 ${15 * unit}px system-ui, sans-serif`;
  context.fillText(viewer.heading(), 16 * unit, 24 * unit);
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

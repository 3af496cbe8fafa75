// What keys do.

export const KEYS = [
  ["drag, one finger", "turn"],
  ["scroll, pinch", "zoom"],
  ["right drag, two fingers", "move"],
  ["arrows, + \u2212", "turn, zoom"],
  ["space", "play or stop"],
  [", .", "frame before, after"],
  ["1 2 3 4", "solution, reference, side by side, error"],
  ["I", "isolines"],
  ["M", "next colours"],
  ["F", "fit the range of colours"],
  ["W", "wireframe"],
  ["C", "clipping plane: cut off what is in front of it"],
  ["[ ]", "move the clipping plane"],
  ["N", "normals"],
  ["B", "band"],
  ["D", "dark or light"],
  ["R", "reset the view"],
  ["P", "save a picture"],
  ["H", "show or hide these keys"],
];

export function bindKeys(actions) {
  window.addEventListener("keydown", (event) => {
    const typing = event.target.matches?.("input:not([type=checkbox]):not([type=range]), select");
    const sliding = event.target.matches?.("input[type=range]") && /^(Arrow|Home|End|Page)/.test(event.key);
    const pressing = event.target.matches?.("button, summary, input[type=checkbox]") && /^( |Enter)$/.test(event.key);
    if (typing || sliding || pressing || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

export function fillHelp(dialog) {
  const table = document.createElement("table");
  for (const [key, meaning] of KEYS) {
    const row = table.insertRow();
    row.insertCell().textContent = key;
    row.insertCell().textContent = meaning;
  }
  dialog.append(table);
  dialog.addEventListener("click", () => dialog.close());
}

// What hands do: controls, keys, pointer and fingers, each bound to what the viewer does.

import { bindKeys, fillHelp } from "./keys.js";
import { savePicture } from "./picture.js";

const element = (id) => document.getElementById(id);

export function bind(viewer) {
  label(viewer);
  bindControls(viewer);
  bindPointer(viewer);
  bindKeyboard(viewer);
  window.addEventListener("resize", () => viewer.resize());
}

/** Write what the data say about themselves, and hide the controls that have nothing to control. */
function label(viewer) {
  const { data } = viewer;
  document.title = `${data.title} - lamina`;
  element("subtitle").textContent = data.subtitle;
  for (const name of Object.keys(data.maps)) element("map").append(new Option(name));
  for (const [name, fact] of data.facts) {
    const [term, meaning] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    meaning.textContent = fact;
    element("facts").querySelector("dl").append(term, meaning);
  }
  const names = element("names").children;
  names[0].textContent = "solution";
  names[1].textContent = data.compared ?? "reference";
  element("what").options[1].textContent = data.compared ?? "reference";
  element("what-row").hidden = !viewer.surface.compared;
  element("wire-row").hidden = viewer.surface.object.isPoints;
  element("normals-row").hidden = !viewer.normals;
  element("band-row").hidden = !viewer.band;
  element("size-row").hidden = !viewer.surface.object.isPoints;
  element("time").hidden = viewer.surface.frames < 2;
  element("frame").max = viewer.surface.frames - 1;
  element("facts").hidden = !data.facts.length;
}

function bindControls(viewer) {
  const on = (id, event, action) => element(id).addEventListener(event, action);
  on("what", "change", (e) => viewer.show(e.target.value));
  on("map", "change", (e) => { viewer.scale.map = e.target.value; viewer.update(); });
  on("reversed", "change", (e) => { viewer.reversed = e.target.checked; viewer.update(); });
  on("lines", "input", (e) => { viewer.lines = Number(e.target.value); viewer.update(); });
  on("size", "input", (e) => { viewer.surface.material.uniforms.size.value = 2 ** Number(e.target.value); viewer.redraw(); });
  on("wire", "change", () => viewer.wireframe());
  on("clip", "change", (e) => viewer.clip(e.target.value));
  on("cut", "input", (e) => viewer.cutAt(Number(e.target.value)));
  on("normals", "change", () => viewer.toggle(viewer.normals));
  on("band", "change", () => viewer.toggle(viewer.band));
  on("dark", "change", () => viewer.darken());
  on("low", "change", (e) => viewer.setRange(Number(e.target.value || NaN), viewer.scale.high));
  on("high", "change", (e) => viewer.setRange(viewer.scale.low, Number(e.target.value || NaN)));
  on("fit", "click", () => viewer.fit());
  on("frame", "input", (e) => { viewer.playing = false; viewer.go(Number(e.target.value)); });
  on("play", "click", () => viewer.play());
  on("reset", "click", () => viewer.resetView());
  on("picture", "click", () => savePicture(viewer));
  on("help", "click", help);
  on("fold", "click", () => viewer.fold());
  if (window.innerWidth < 720) viewer.fold();
  fillHelp(element("keys"));
}

function help() {
  const dialog = element("keys");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

function bindKeyboard(viewer) {
  const step = (by) => { viewer.playing = false; viewer.go(Math.round(viewer.place) + by); };
  bindKeys({
    " ": () => viewer.play(),
    ",": () => step(-1),
    ".": () => step(1),
    1: () => viewer.show("solution"),
    2: () => viewer.show("reference"),
    3: () => viewer.show("both"),
    4: () => viewer.show("error"),
    i: () => { viewer.lines = viewer.lines ? 0 : 12; viewer.update(); },
    m: () => viewer.nextMap(),
    w: () => viewer.wireframe(),
    c: () => viewer.clip(viewer.cut ? "none" : viewer.facingAxis()),
    "[": () => viewer.cutAt(viewer.cut?.share - 0.05),
    "]": () => viewer.cutAt(viewer.cut?.share + 0.05),
    f: () => viewer.fit(),
    n: () => viewer.toggle(viewer.normals),
    b: () => viewer.toggle(viewer.band),
    d: () => viewer.darken(),
    r: () => viewer.resetView(),
    p: () => savePicture(viewer),
    h: help,
    ArrowLeft: () => viewer.turn(-0.1, 0),
    ArrowRight: () => viewer.turn(0.1, 0),
    ArrowUp: () => viewer.turn(0, 0.1),
    ArrowDown: () => viewer.turn(0, -0.1),
    "+": () => viewer.zoom(0.9),
    "=": () => viewer.zoom(0.9),
    "-": () => viewer.zoom(1 / 0.9),
  });
}

/** Hovering reads a value, and so does a tap; while something is pressed the surface is being turned. */
function bindPointer(viewer) {
  let waiting = null;
  let down = false;
  const hide = () => { waiting = null; element("probe").hidden = true; };
  const look = () => {
    const at = waiting;
    waiting = null;
    if (at && !down) viewer.hover(...at);
  };
  viewer.canvas.addEventListener("pointermove", (event) => {
    if (down) return hide();
    if (!waiting) requestAnimationFrame(look); // one reading a frame is enough
    waiting = [event.clientX, event.clientY];
  });
  let pressed = [0, 0];
  viewer.canvas.addEventListener("pointerdown", (event) => {
    down = true;
    pressed = [event.clientX, event.clientY];
  });
  window.addEventListener("pointerup", (event) => {
    down = false;
    const moved = Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]);
    if (event.target === viewer.canvas && moved < 6) viewer.hover(event.clientX, event.clientY); // a tap
  });
  window.addEventListener("pointercancel", () => { down = false; });
  viewer.canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
}

// The viewer: what is shown and how, drawn when it changes.

import { PerspectiveCamera, Plane, Scene, Vector3, WebGLRenderer } from "three";
import { OrbitControls } from "three/addons/controls/OrbitControls.js";
import { drawBar } from "./bar.js";
import { bytes } from "./data.js";
import { bind } from "./hands.js";
import { Probe } from "./probe.js";
import { bandNodes, edgeLines, normalLines, Surface } from "./surface.js";
import { precise, text, timeText } from "./ticks.js";

const WHATS = ["solution", "reference", "both", "error"];
const BAR_WIDTH = 64; // left of the surface, in CSS pixels
const PLAY_SECONDS = 6; // from the first frame to the last
const REST = 150; // milliseconds without a change after which the picture is drawn with smooth edges
const FINE = 2; // pixels drawn across each pixel of the screen then
const element = (id) => document.getElementById(id);

/** Whether the browser draws in software, where smooth edges would take half of the time. */
function withoutGraphicsCard() {
  const context = document.createElement("canvas").getContext("webgl2");
  const about = context?.getExtension("WEBGL_debug_renderer_info");
  const name = about ? String(context.getParameter(about.UNMASKED_RENDERER_WEBGL)) : "";
  context?.getExtension("WEBGL_lose_context")?.loseContext();
  return /swiftshader|llvmpipe|software|basic render/i.test(name);
}

export class Viewer {
  constructor(data) {
    this.data = data;
    this.place = 0; // between frames
    this.playing = false;
    this.what = "solution";
    this.lines = 0;
    this.reversed = false;
    // The colours of the field and those of its error are chosen apart.
    this.scales = { field: { ...data.values }, error: data.error ? { ...data.error } : null };
    this.canvas = element("canvas");
    const slow = withoutGraphicsCard();
    this.renderer = new WebGLRenderer({ canvas: this.canvas, antialias: !slow });
    this.renderer.autoClear = false;
    this.ratio = slow ? 1 : Math.min(window.devicePixelRatio || 1, 2); // while something moves
    this.cut = null; // the clipping plane: its axis, its direction, and where along it
    this.scene = new Scene();
    this.surface = new Surface(data);
    this.scene.add(this.surface.object);
    this.wire = null; // made when it is first asked for
    this.normals = data.arrays.faces || data.oriented ? normalLines(data) : null;
    this.band = data.arrays.band ? bandNodes(data) : null;
    for (const layer of [this.normals, this.band]) if (layer) this.scene.add(layer);
    this.camera = new PerspectiveCamera(data.camera.angle, 1, 0.01, 100);
    this.camera.up.set(...data.camera.up);
    this.controls = new OrbitControls(this.camera, this.canvas);
    this.controls.addEventListener("change", () => this.redraw());
    this.probe = new Probe(this.renderer, this.scene, this.surface);
    this.frames = 0; // drawn so far
    this.resetView();
    bind(this);
    this.resize();
    this.update();
  }

  get scale() {
    return this.what === "error" ? this.scales.error : this.scales.field;
  }

  // The picture

  resetView() {
    const { direction, distance } = this.data.camera;
    this.camera.position.set(...direction).multiplyScalar(distance);
    this.controls.target.set(0, 0, 0);
    this.controls.update();
  }

  resize() {
    this.renderer.setSize(window.innerWidth, window.innerHeight, false);
    this.drawBar();
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
      clearTimeout(this.rest);
      this.rest = setTimeout(() => this.drawFinely(), REST);
    });
  }

  /** Draw with several pixels for each of the screen; the browser averages them, so that edges are smooth. */
  drawFinely() {
    clearTimeout(this.rest);
    this.draw(Math.max(FINE, this.ratio));
    document.documentElement.dataset.fine = String(this.frames);
  }

  /** Where the surface is drawn: one view, or two beside each other, in CSS pixels, between the colour bar and
   * the controls if there is room. */
  views() {
    const wide = window.innerWidth >= 720;
    const open = wide && element("fold").getAttribute("aria-expanded") === "true";
    const left = wide ? BAR_WIDTH : 0;
    const width = window.innerWidth - left - (open ? element("panel").offsetWidth : 0);
    const height = window.innerHeight;
    if (this.what !== "both") return [{ left, width, height, what: WHATS.indexOf(this.what) % 2 }];
    const half = width / 2;
    return [0, 1].map((what) => ({ left: left + what * half, width: half, height, what }));
  }

  /** Make the camera one of that view; where it is narrow, the surface fits its width. */
  aim(view) {
    const aspect = view.width / view.height;
    const half = Math.tan((this.data.camera.angle * Math.PI) / 360) / Math.min(1, aspect);
    this.camera.aspect = aspect;
    this.camera.fov = (360 / Math.PI) * Math.atan(half);
    this.camera.updateProjectionMatrix();
    this.surface.material.uniforms.pixels.value = (view.height * this.renderer.getPixelRatio()) / (2 * half);
  }

  draw(ratio = this.ratio) {
    const { renderer, camera, surface } = this;
    if (renderer.getPixelRatio() !== ratio) renderer.setPixelRatio(ratio);
    const { uniforms } = surface.material;
    const { scale } = this;
    surface.at(this.place);
    uniforms.map.value = surface.maps[scale.map];
    uniforms.range.value = [(scale.low - scale.offset) / scale.scale, (scale.high - scale.offset) / scale.scale];
    uniforms.reversed.value = this.reversed;
    uniforms.lines.value = this.lines;
    uniforms.read.value = 0;
    renderer.setRenderTarget(null);
    renderer.setScissorTest(false);
    renderer.setViewport(0, 0, window.innerWidth, window.innerHeight);
    renderer.setClearColor(document.documentElement.classList.contains("dark") ? 0x16181d : 0xffffff, 1);
    renderer.clear();
    renderer.setScissorTest(true);
    const views = this.views();
    for (const [i, view] of views.entries()) {
      const name = element("names").children[i];
      name.style.left = `${view.left}px`;
      name.style.width = `${view.width}px`;
      this.aim(view);
      uniforms.what.value = this.what === "error" ? 2 : view.what;
      renderer.setViewport(view.left, 0, view.width, view.height);
      renderer.setScissor(view.left, 0, view.width, view.height);
      renderer.render(this.scene, camera);
    }
    this.frames += 1;
    document.documentElement.dataset.drawn = String(this.frames);
  }

  drawBar() {
    const { map, low, high } = this.scale;
    const ink = getComputedStyle(document.body).color;
    drawBar(element("colours"), element("ticks"), this.mapBytes(map), this.reversed, low, high, ink);
  }

  mapBytes(name) {
    return bytes(this.data.maps[name]);
  }

  // The controls

  /** Make everything on the page say what the state is. */
  update() {
    const { scale } = this;
    element("what").value = this.what;
    element("map").value = scale.map;
    for (const end of ["low", "high"]) {
      const box = element(end);
      box.value = precise(scale[end], scale.high - scale.low, 6);
      box.style.width = `${box.value.length + 3}ch`; // the whole number can be read
    }
    element("field").textContent = this.fieldName();
    element("reversed").checked = this.reversed;
    element("lines").value = this.lines;
    element("lines-count").textContent = this.lines || "none";
    element("wire").checked = Boolean(this.wire?.visible);
    element("clip").value = this.cut ? this.cut.name : "none";
    element("cut-row").hidden = !this.cut;
    element("normals").checked = Boolean(this.normals?.visible);
    element("band").checked = Boolean(this.band?.visible);
    element("dark").checked = document.documentElement.classList.contains("dark");
    element("names").classList.toggle("two", this.what === "both");
    this.showTime();
    this.drawBar();
    this.redraw();
  }

  time() {
    const { times } = this.data;
    const before = Math.min(Math.floor(this.place), times.length - 1);
    const after = Math.min(before + 1, times.length - 1);
    return times[before] + (this.place - before) * (times[after] - times[before]);
  }

  moment() {
    return timeText(this.time(), this.data.times, this.data.timeUnit);
  }

  /** What the colours stand for: "temperature (K)". */
  fieldName() {
    return this.what === "error" ? `error of ${this.data.name}` : this.data.name;
  }

  /** "temperature on bunny, t = 0.5 s". */
  heading() {
    return this.data.timed ? `${this.data.title}, ${this.moment()}` : this.data.title;
  }

  showTime() {
    element("frame").value = this.place;
    element("title").textContent = this.heading();
    element("moment").textContent = this.moment();
    element("play").innerHTML = this.playing ? "&#10074;&#10074;" : "&#9654;";
    element("play").setAttribute("aria-label", this.playing ? "Stop" : "Play");
  }

  show(what) {
    if (!this.surface.compared && what !== "solution") return;
    this.what = what;
    this.update();
  }

  toggle(layer) {
    if (!layer) return;
    layer.visible = !layer.visible;
    this.update();
  }

  wireframe() {
    if (this.surface.object.isPoints) return;
    if (!this.wire) {
      this.wire = edgeLines(this.surface);
      this.scene.add(this.wire);
    }
    this.toggle(this.wire);
  }

  // The clipping plane

  /** The axis that points most towards the viewer. */
  facingAxis() {
    const towards = this.camera.position.clone().sub(this.controls.target).toArray().map(Math.abs);
    return "xyz"[towards.indexOf(Math.max(...towards))];
  }

  /** Cut off the side towards the viewer, across an axis or across the line of sight; "none" shows everything. */
  clip(name) {
    if (name === "none") {
      this.cut = null;
      this.renderer.clippingPlanes = [];
      return this.update();
    }
    const towards = this.camera.position.clone().sub(this.controls.target).normalize();
    const direction = towards.clone();
    if (name !== "view") direction.set(...["x", "y", "z"].map((axis) => (axis === name ? Math.sign(towards[axis]) || 1 : 0)));
    let [low, high] = [Infinity, -Infinity];
    const p = this.data.arrays.positions;
    for (let i = 0; i < p.length; i += 3) {
      const along = direction.x * p[i] + direction.y * p[i + 1] + direction.z * p[i + 2];
      low = Math.min(low, along);
      high = Math.max(high, along);
    }
    this.cut = { name, direction, low, high, share: 0.5 };
    this.cutAt(0.5);
    this.update();
  }

  /** Move the plane to a share of the way from the front, 0, to the back, 1. */
  cutAt(share) {
    const { cut, data } = this;
    if (!cut) return;
    cut.share = Math.min(Math.max(share, 0), 1);
    const at = cut.high + cut.share * (cut.low - cut.high);
    // What lies in the plane itself stays.
    this.renderer.clippingPlanes = [new Plane(cut.direction.clone().negate(), at + 1e-6)];
    const axis = "xyz".indexOf(cut.name);
    const place = axis < 0 ? at * data.camera.radius : data.camera.centre[axis] + data.camera.radius * at * cut.direction.getComponent(axis);
    element("cut").value = cut.share;
    element("cut-place").textContent = precise(place, data.camera.radius, 3);
    this.redraw();
  }

  setRange(low, high) {
    if (Number.isFinite(low) && Number.isFinite(high) && low < high) Object.assign(this.scale, { low, high });
    this.update();
  }

  fit() {
    const whole = this.what === "error" ? this.data.error : this.data.values;
    this.setRange(whole.low, whole.high);
  }

  nextMap() {
    const names = Object.keys(this.data.maps);
    this.scale.map = names[(names.indexOf(this.scale.map) + 1) % names.length];
    this.update();
  }

  go(place) {
    this.place = Math.min(Math.max(place, 0), this.surface.frames - 1);
    this.showTime();
    this.redraw();
  }

  play() {
    if (this.surface.frames < 2) return;
    this.playing = !this.playing;
    if (this.playing && this.place >= this.surface.frames - 1) this.place = 0;
    this.showTime();
    let last = performance.now();
    const step = (now) => {
      if (!this.playing) return;
      const speed = (this.surface.frames - 1) / (1000 * PLAY_SECONDS);
      const next = this.place + speed * Math.min(now - last, 250);
      last = now;
      if (next >= this.surface.frames - 1) this.playing = false;
      this.go(next);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  }

  turn(right, up) {
    const away = this.camera.position.clone().sub(this.controls.target);
    const side = new Vector3().crossVectors(this.camera.up, away).normalize();
    const tilted = away.clone().applyAxisAngle(side, -up);
    if (tilted.angleTo(this.camera.up) > 0.05 && tilted.angleTo(this.camera.up) < Math.PI - 0.05) away.copy(tilted);
    away.applyAxisAngle(this.camera.up, right);
    this.camera.position.copy(this.controls.target).add(away);
    this.controls.update();
  }

  zoom(factor) {
    this.camera.position.sub(this.controls.target).multiplyScalar(factor).add(this.controls.target);
    this.controls.update();
  }

  // Reading values

  /** What lies at a place on the page, in CSS pixels: its value (as shown there) and its coordinates. */
  read(x, y) {
    const view = this.views().find((v) => x >= v.left && x < v.left + v.width);
    if (!view) return null;
    const { camera, data } = this;
    this.aim(view);
    const ratio = this.renderer.getPixelRatio();
    const size = [view.width * ratio, view.height * ratio];
    const at = [(x - view.left) * ratio, y * ratio];
    const asked = (what) => this.probe.at(camera, ...at, ...size, what);
    const shown = this.what === "error" ? 2 : view.what;
    const found = asked(shown);
    if (!found) return null;
    const { field, error } = this.scales;
    const place = found.place.toArray().map((p, i) => data.camera.centre[i] + data.camera.radius * p);
    const missing = (v) => (Math.abs(v) < 1e37 ? v : NaN);
    const numbers = { place };
    const inField = (v) => field.offset + field.scale * missing(v);
    if (shown === 0) numbers.value = inField(found.value);
    if (shown === 1) numbers.reference = inField(found.value);
    if (shown === 2) numbers.error = error.scale * missing(found.value);
    if (this.surface.compared) {
      numbers.value ??= inField(asked(0).value);
      numbers.reference ??= inField(asked(1).value);
      numbers.error ??= error.scale * missing(asked(2).value);
    }
    return numbers;
  }

  hover(x, y) {
    const found = this.read(x, y);
    const box = element("probe");
    box.hidden = !found;
    if (!found) return;
    const { camera } = this.data;
    const value = (v) => precise(v, this.scales.field.scale, 6);
    const rows = [found.place.map((p) => precise(p, camera.radius, 4)).join("  ")];
    if (this.surface.compared) {
      rows.unshift(`reference  ${value(found.reference)}`, `error      ${text(found.error)}`);
    }
    rows.unshift(this.surface.compared ? `solution   ${value(found.value)}` : value(found.value));
    box.textContent = rows.join("\n");
    box.style.left = `${Math.min(x + 16, window.innerWidth - box.offsetWidth - 8)}px`;
    box.style.top = `${Math.min(y + 16, window.innerHeight - box.offsetHeight - 8)}px`;
  }

  fold() {
    const open = element("fold").getAttribute("aria-expanded") === "true";
    element("fold").setAttribute("aria-expanded", String(!open));
    this.redraw();
  }

  darken() {
    document.documentElement.classList.toggle("dark");
    this.update();
  }
}

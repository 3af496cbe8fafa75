// The surface, its normals and the band as three.js objects.

import {
  BufferAttribute,
  BufferGeometry,
  DataTexture,
  DoubleSide,
  GLSL3,
  LinearFilter,
  LineBasicMaterial,
  LineSegments,
  Mesh,
  Points,
  PointsMaterial,
  RGBAFormat,
  ShaderMaterial,
} from "three";
import { bytes, frame } from "./data.js";
import { EDGES, POINTS, TRIANGLES } from "./shaders.js";

export class Surface {
  constructor(data) {
    const { arrays } = data;
    this.count = arrays.positions.length / 3;
    this.frames = data.times.length;
    this.compared = Boolean(arrays.error);
    this.copies = arrays.copies ?? new Uint32Array(0);
    this.geometry = new BufferGeometry();
    this.geometry.setAttribute("position", new BufferAttribute(this.#withCopies(arrays.positions, 3), 3));
    this.geometry.setAttribute("normal", new BufferAttribute(arrays.normals, 3, true));
    if (arrays.faces) this.geometry.setIndex(new BufferAttribute(arrays.faces, 1));
    if (arrays.extents) {
      this.geometry.setAttribute("extent", new BufferAttribute(arrays.extents, 1));
      this.geometry.setAttribute("clip", new BufferAttribute(arrays.clips, 3));
    }
    this.values = this.#attributes(arrays.values);
    this.errors = this.compared ? this.#attributes(arrays.error) : null;
    this.maps = Object.fromEntries(Object.entries(data.maps).map(([name, text]) => [name, texture(bytes(text))]));
    const shader = arrays.faces ? TRIANGLES : POINTS;
    this.material = new ShaderMaterial({
      glslVersion: GLSL3,
      vertexShader: shader.vertex,
      fragmentShader: shader.fragment,
      defines: this.compared ? { COMPARED: 1 } : {},
      side: DoubleSide,
      clipping: true,
      uniforms: {
        share: { value: 0 },
        what: { value: 0 },
        errorScale: { value: this.compared ? data.error.scale / data.values.scale : 1 },
        quantised: { value: arrays.values instanceof Uint16Array ? [-1, 2] : [0, 1] },
        map: { value: null },
        range: { value: [-1, 1] },
        reversed: { value: false },
        lines: { value: 0 },
        read: { value: 0 },
        size: { value: 1 },
        pixels: { value: 1 },
      },
    });
    this.object = arrays.faces ? new Mesh(this.geometry, this.material) : new Points(this.geometry, this.material);
    this.object.frustumCulled = false;
    this.at(0);
  }

  #attributes(array) {
    const normalised = array instanceof Uint16Array;
    return Array.from(
      { length: this.frames },
      (_, i) => new BufferAttribute(this.#withCopies(frame(array, i, this.count), 1), 1, normalised),
    );
  }

  /** An array of `size` numbers for each vertex, followed by those of the vertices that creases need twice. */
  #withCopies(array, size) {
    const { copies } = this;
    if (!copies.length) return array;
    const all = new array.constructor(array.length + size * copies.length);
    all.set(array);
    for (let i = 0, k = array.length; i < copies.length; i++) {
      for (let j = 0; j < size; j++) all[k++] = array[size * copies[i] + j];
    }
    return all;
  }

  /** Show the state at a place between frames, such as 2.25. */
  at(place) {
    const before = Math.min(Math.floor(place), this.frames - 1);
    const after = Math.min(before + 1, this.frames - 1);
    this.geometry.setAttribute("before", this.values[before]);
    this.geometry.setAttribute("after", this.values[after]);
    if (this.compared) {
      this.geometry.setAttribute("errorBefore", this.errors[before]);
      this.geometry.setAttribute("errorAfter", this.errors[after]);
    }
    this.material.uniforms.share.value = place - before;
  }
}

function texture(rgba) {
  const made = new DataTexture(rgba, 256, 1, RGBAFormat);
  made.minFilter = made.magFilter = LinearFilter;
  made.needsUpdate = true;
  return made;
}

/** The edges of the triangles, each once. */
export function edgeLines(surface) {
  const { count, copies } = surface;
  const faces = surface.geometry.index.array;
  const vertex = (i) => (i < count ? i : copies[i - count]);
  const keys = new Float64Array(faces.length);
  for (let i = 0; i < faces.length; i++) {
    const [a, b] = [vertex(faces[i]), vertex(faces[i % 3 === 2 ? i - 2 : i + 1])];
    keys[i] = Math.min(a, b) * count + Math.max(a, b);
  }
  keys.sort();
  const ends = [];
  for (let i = 0; i < keys.length; i++) {
    if (i === 0 || keys[i] !== keys[i - 1]) ends.push(Math.floor(keys[i] / count), keys[i] % count);
  }
  const geometry = new BufferGeometry().setAttribute("position", surface.geometry.getAttribute("position"));
  geometry.setIndex(new BufferAttribute(new Uint32Array(ends), 1));
  const material = new ShaderMaterial({
    glslVersion: GLSL3,
    vertexShader: EDGES.vertex,
    fragmentShader: EDGES.fragment,
    transparent: true,
    depthWrite: false,
    clipping: true,
  });
  return hidden(new LineSegments(geometry, material));
}

const MOST_NORMALS = 20000; // more would be a fur

export function normalLines(data) {
  const { positions, normals } = data.arrays;
  const count = positions.length / 3;
  const step = Math.max(1, Math.ceil(count / MOST_NORMALS));
  const length = Math.min(0.06, Math.max(0.012, 2.5 / Math.sqrt(count / step)));
  const ends = new Float32Array(6 * Math.ceil(count / step));
  for (let i = 0, k = 0; i < count; i += step, k += 6) {
    for (let axis = 0; axis < 3; axis++) {
      const start = positions[3 * i + axis];
      ends[k + axis] = start;
      ends[k + 3 + axis] = start + (length * normals[3 * i + axis]) / 127;
    }
  }
  const geometry = new BufferGeometry().setAttribute("position", new BufferAttribute(ends, 3));
  return hidden(new LineSegments(geometry, new LineBasicMaterial({ color: 0x6a6d76 })));
}

export function bandNodes(data) {
  const geometry = new BufferGeometry().setAttribute("position", new BufferAttribute(data.arrays.band, 3));
  const material = new PointsMaterial({ color: 0x70737c, size: 2, sizeAttenuation: false });
  return hidden(new Points(geometry, material));
}

function hidden(object) {
  object.visible = false;
  object.frustumCulled = false;
  return object;
}

// What is under the pointer: the surface is drawn once more around that pixel, writing values instead of colours,
// so that what is read is what is seen, whatever the number of triangles.

import { NearestFilter, Vector3, WebGLRenderTarget } from "three";

export class Probe {
  constructor(renderer, scene, surface) {
    Object.assign(this, { renderer, scene, surface });
    // A point is drawn only where its centre is inside, so around points there is a margin.
    this.side = surface.object.isPoints ? 129 : 1;
    this.target = new WebGLRenderTarget(this.side, this.side, { minFilter: NearestFilter, magFilter: NearestFilter });
    this.bytes = new Uint8Array(4);
    this.number = new Float32Array(this.bytes.buffer);
  }

  /** Normalised value and place at pixel (x, y) of a view of given size; null beside the surface. */
  at(camera, x, y, width, height, what) {
    const { uniforms } = this.surface.material;
    const kept = { what: uniforms.what.value, read: uniforms.read.value };
    const others = this.scene.children.filter((child) => child !== this.surface.object && child.visible);
    for (const other of others) other.visible = false;
    const margin = (this.side - 1) / 2;
    camera.setViewOffset(width, height, Math.floor(x) - margin, Math.floor(y) - margin, this.side, this.side);
    uniforms.what.value = what;
    const value = this.#read(camera, 1);
    const depth = value === null ? null : this.#read(camera, 2);
    camera.clearViewOffset();
    for (const other of others) other.visible = true;
    uniforms.what.value = kept.what;
    uniforms.read.value = kept.read;
    if (depth === null) return null;
    const place = new Vector3((2 * (Math.floor(x) + 0.5)) / width - 1, 1 - (2 * (Math.floor(y) + 0.5)) / height, 2 * depth - 1);
    return { value, place: place.unproject(camera) };
  }

  #read(camera, read) {
    const { renderer, target } = this;
    this.surface.material.uniforms.read.value = read;
    renderer.setRenderTarget(target);
    renderer.setScissorTest(false);
    renderer.setViewport(0, 0, this.side, this.side);
    renderer.setClearColor(0xffffff, 1); // as a number, not one
    renderer.clear();
    renderer.render(this.scene, camera);
    const middle = (this.side - 1) / 2;
    renderer.readRenderTargetPixels(target, middle, middle, 1, 1, this.bytes);
    renderer.setRenderTarget(null);
    return Number.isNaN(this.number[0]) ? null : this.number[0];
  }
}

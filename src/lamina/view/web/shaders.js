// One shader for triangles and one for points; both colour by value, draw isolines and can be read from.
//
// Values come normalised (value = offset + scale v), so that single precision is enough for a small variation
// about a large mean. The error against a reference is an array of its own, for the same reason.

const VALUE = /* glsl */ `
in float before;
in float after;
#ifdef COMPARED
in float errorBefore;
in float errorAfter;
#endif
uniform float share;       // of the way from the frame before to the one after
uniform int what;          // 0 solution, 1 reference, 2 error
uniform float errorScale;  // scale of the error over that of the values
uniform vec2 quantised;    // v = x + y * attribute, where values are kept as 16-bit integers

float shownValue() {
  float v = quantised.x + quantised.y * mix(before, after, share);
#ifdef COMPARED
  float e = mix(errorBefore, errorAfter, share);
  if (what == 1) return v - errorScale * e;
  if (what == 2) return e;
#endif
  return v;
}`;

const COLOURS = /* glsl */ `
precision highp float;
precision highp int;
uniform sampler2D map;
uniform vec2 range;        // values at the two ends of the colours
uniform bool reversed;
uniform float lines;       // how many isolines

vec3 linear(vec3 c) {
  return mix(c / 12.92, pow((c + 0.055) / 1.055, vec3(2.4)), step(0.04045, c));
}

vec3 encoded(vec3 l) {
  return mix(12.92 * l, 1.055 * pow(l, vec3(1.0 / 2.4)) - 0.055, step(0.0031308, l));
}

/** As lamina.view.shade does: a light from the upper left, one from the viewer, and the sky. */
vec3 lit(vec3 own, vec3 n) {
  const vec3 key = normalize(vec3(-0.5, 0.72, 0.62));
  float diffuse = 0.30 + 0.12 * (0.5 + 0.5 * n.y) + 0.29 * max(n.z, 0.0) + 0.42 * max(dot(n, key), 0.0);
  float gloss = 0.05 * pow(max(dot(n, normalize(key + vec3(0.0, 0.0, 1.0))), 0.0), 60.0);
  return encoded(clamp(linear(own) * diffuse + gloss, 0.0, 1.0));
}

vec3 mapped(float value) {
  if (!(abs(value) < 1e37)) return vec3(0.66, 0.66, 0.675);  // missing
  float t = clamp((value - range.x) / (range.y - range.x), 0.0, 1.0);
  if (reversed) t = 1.0 - t;
  return texture(map, vec2((0.5 + t * 255.0) / 256.0, 0.5)).rgb;
}`;

const READ = /* glsl */ `
uniform int read;          // 1: write the value itself, 2: the depth
out vec4 colour;

vec4 bits(float number) {
  uint b = floatBitsToUint(number);
  return vec4(b & 255u, (b >> 8) & 255u, (b >> 16) & 255u, b >> 24) / 255.0;
}`;

const LINES = /* glsl */ `
vec3 withLines(vec3 c, float value, float slope) {
  if (lines < 0.5) return c;
  float t = (value - range.x) / (range.y - range.x) * (lines + 1.0);
  float width = max(slope / abs(range.y - range.x) * (lines + 1.0), 1e-6);
  float away = abs(t - round(t)) / width;
  bool inside = round(t) > 0.5 && round(t) < lines + 0.5;
  // Where lines crowd closer than three pixels they would make a grey, so they fade.
  float ink = inside ? (1.0 - smoothstep(0.6, 1.4, away)) * clamp(1.5 - 4.0 * width, 0.0, 1.0) : 0.0;
  return mix(c, vec3(0.1, 0.1, 0.12), 0.75 * ink);
}`;

export const TRIANGLES = {
  vertex: /* glsl */ `${VALUE}
#include <clipping_planes_pars_vertex>
out float value;
out vec3 seen;
out vec3 direction;
void main() {
  value = shownValue();
  vec4 mvPosition = modelViewMatrix * vec4(position, 1.0);
  seen = mvPosition.xyz;
  direction = normalMatrix * normal;
  gl_Position = projectionMatrix * mvPosition;
  #include <clipping_planes_vertex>
}`,
  fragment: /* glsl */ `${COLOURS}${READ}${LINES}
#include <clipping_planes_pars_fragment>
in float value;
in vec3 seen;
in vec3 direction;
void main() {
  #include <clipping_planes_fragment>
  if (read == 1) { colour = bits(value); return; }
  if (read == 2) { colour = bits(gl_FragCoord.z); return; }
  vec3 flat_ = normalize(cross(dFdx(seen), dFdy(seen)));
  vec3 n = normalize(direction);
  if (dot(n, flat_) < 0.0) n = -n;  // both sides are lit
  colour = vec4(lit(withLines(mapped(value), value, fwidth(value)), n), 1.0);
}`,
};

// The edges of the triangles, a thousandth nearer to the eye than the triangles themselves.
export const EDGES = {
  vertex: /* glsl */ `
#include <clipping_planes_pars_vertex>
void main() {
  vec4 mvPosition = modelViewMatrix * vec4(position, 1.0);
  gl_Position = projectionMatrix * vec4(0.999 * mvPosition.xyz, 1.0);
  #include <clipping_planes_vertex>
}`,
  fragment: /* glsl */ `
precision highp float;
#include <clipping_planes_pars_fragment>
out vec4 colour;
void main() {
  #include <clipping_planes_fragment>
  colour = vec4(0.1, 0.1, 0.12, 0.45);
}`,
};

// Lit where the vertex is, not in every pixel: discs overlap many times over.
export const POINTS = {
  vertex: /* glsl */ `${COLOURS}${VALUE}
#include <clipping_planes_pars_vertex>
in float extent;
in vec3 clip;
uniform float size;
uniform float pixels;      // of the picture's height over twice the tangent of half the angle
out float value;
out vec3 own;              // the colour, lit
out vec3 direction;
out vec3 cut;              // the part of the disc where the offset in radii times this is more than 1 is cut off
out vec2 disc;             // depth of the centre, radius
out vec2 projection;       // the entries of the projection that depths depend on

vec3 banded(float v) {
  if (lines < 0.5 || !(abs(v) < 1e37)) return mapped(v);
  // No slope is known here, so there are no lines: bands of equal colour between them instead.
  float t = clamp((v - range.x) / (range.y - range.x), 0.0, 0.9999);
  return mapped(range.x + (floor(t * (lines + 1.0)) + 0.5) / (lines + 1.0) * (range.y - range.x));
}

void main() {
  value = shownValue();
  vec4 mvPosition = modelViewMatrix * vec4(position, 1.0);
  direction = normalize(normalMatrix * normal);
  if (direction.z < 0.0) direction = -direction;
  own = lit(banded(value), direction);
  projection = vec2(projectionMatrix[2][2], projectionMatrix[3][2]);
  gl_Position = projectionMatrix * mvPosition;
  float away = -mvPosition.z;
  gl_PointSize = clamp(2.0 * size * extent * pixels / away, 1.5, 128.0);
  disc = vec2(-away, 0.5 * gl_PointSize * away / pixels);
  cut = normalMatrix * clip * (disc.y / extent);
  #include <clipping_planes_vertex>
}`,
  fragment: /* glsl */ `${COLOURS}${READ}
#include <clipping_planes_pars_fragment>
in float value;
in vec3 own;
in vec3 direction;
in vec3 cut;
in vec2 disc;
in vec2 projection;
void main() {
  #include <clipping_planes_fragment>
  vec2 p = 2.0 * gl_PointCoord - 1.0;
  p.y = -p.y;
  float rise = -dot(direction.xy, p) / max(direction.z, 0.3);  // a disc, not quite to the edge
  float r2 = dot(p, p) + rise * rise;
  if (r2 > 1.0 || dot(cut, vec3(p, rise)) > 1.0) discard;
  // Discs are hollowed: of those that overlap, the one whose centre is nearest is seen, and no edges show.
  float z = disc.x + disc.y * (rise - 0.7 * r2);
  gl_FragDepth = clamp(0.5 - 0.5 * (projection.x * z + projection.y) / z, 0.0, 1.0);
  if (read == 1) { colour = bits(value); return; }
  if (read == 2) { colour = bits(gl_FragDepth); return; }
  colour = vec4(own, 1.0);
}`,
};

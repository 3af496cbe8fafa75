// The data that lamina wrote into the page: a JSON header, and arrays as base64 in elements of their own.

const TYPES = { f4: Float32Array, i1: Int8Array, u2: Uint16Array, u4: Uint32Array, u1: Uint8Array };

export function readData(page = document) {
  const header = JSON.parse(page.getElementById("lamina-header").textContent);
  const arrays = {};
  for (const [name, type] of Object.entries(header.arrays)) {
    const element = page.getElementById(`lamina-${name}`);
    arrays[name] = new TYPES[type](bytes(element.textContent).buffer);
    element.remove(); // the text is several times as large as the array
  }
  return { ...header, arrays };
}

export function bytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const decoded = atob(text);
  const result = new Uint8Array(decoded.length);
  for (let i = 0; i < decoded.length; i++) result[i] = decoded.charCodeAt(i);
  return result;
}

/** Frame i of a field, of n numbers. */
export function frame(array, i, n) {
  return array.subarray(i * n, (i + 1) * n);
}

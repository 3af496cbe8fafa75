// Round numbers for the colour bar, and numbers as text.

/** Multiples of 1, 2 or 5 times a power of ten in [low, high], at most `most`. */
export function ticks(low, high, most = 6) {
  const raw = (high - low) / (most - 1);
  if (!(raw > 0) || !Number.isFinite(raw)) return [];
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 5, 10].find((m) => (high - low) / (m * base) <= most - 1 + 1e-9);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-6); i <= Math.floor(high / step + 1e-6); i++) found.push(i * step);
  return found;
}

/** A number as text, with as many digits as tell apart what differs by a share of `size`. */
export function precise(number, size, digits = 5) {
  const more = Math.log10(Math.abs(number) / Math.abs(size));
  return text(number, Math.min(16, digits + (more > 0 ? Math.ceil(more) : 0)));
}

export function text(number, digits = 6) {
  if (!Number.isFinite(number)) return "none";
  return String(Number(number.toPrecision(digits)));
}

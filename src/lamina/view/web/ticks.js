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

/** "t = 0.0125 s", with enough digits to tell it from its neighbours among times. */
export function timeText(time, times, unit) {
  let smallest = Math.abs(time);
  const steps = times.slice(1).map((t, i) => Math.abs(t - times[i])).filter((step) => step > 0);
  if (steps.length) smallest = Math.min(...steps);
  const decimals = smallest > 0 ? Math.min(100, Math.max(0, 2 - Math.floor(Math.log10(smallest)))) : 6;
  return `t = ${Number(Number(time.toFixed(decimals)).toPrecision(15))}${unit ? ` ${unit}` : ""}`;
}

export function text(number, digits = 6) {
  if (!Number.isFinite(number)) return "none";
  const rounded = Number(number.toPrecision(digits));
  return rounded !== 0 && Math.abs(rounded) < 1e-4 ? rounded.toExponential() : String(rounded);
}

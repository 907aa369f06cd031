// Random numbers that are the same in every browser, by name: no state is kept between calls.

// FNV-1a, 32 bits.
export function seedOf(text) {
  let hash = 0x811c9dc5;
  for (const letter of text) {
    hash ^= letter.codePointAt(0);
    hash = Math.imul(hash, 0x01000193);
  }
  return hash >>> 0;
}

// mulberry32: uniform in (0, 1).
export function uniforms(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (((mixed ^ (mixed >>> 14)) >>> 0) + 0.5) / 4294967296;
  };
}

// `count` standard normal numbers of a name. A longer list begins with the shorter one.
export function normals(name, count, scale = 1) {
  const uniform = uniforms(seedOf(name));
  const found = [];
  while (found.length < count) {
    const length = Math.sqrt(-2 * Math.log(uniform()));
    const angle = 2 * Math.PI * uniform();
    found.push(scale * length * Math.cos(angle), scale * length * Math.sin(angle));
  }
  return found.slice(0, count);
}

// A matrix of `rows` x `columns`: a wider one begins with the narrower one, up to the scale.
export function normalMatrix(name, rows, columns, scale = 1) {
  return Array.from({ length: rows }, (_, row) => normals(`${name}/${row}`, columns, scale));
}

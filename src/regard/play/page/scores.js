// Every score of regard, its softmax and its gradients, on plain arrays of doubles. Pure functions.
//
// A score is lowered for given keys, as the library does it, to
//   rows           r vectors (d): z = rows q and sq = |q|^2 are all that the score reads of a query
//   value          (z, sq, logits): writes the n scores
//   slope          (z, sq, i, dz): writes d score_i / dz, returns d score_i / dsq
// so that a query that moves in a plane costs r and not d.
//
// Legend: d width, n keys, r rows, H hidden units.

export const NAMES = [
  "dot", "scaled_dot", "cosine", "gaussian", "bilinear", "low_rank", "additive", "gatv2", "gat",
];
export const SLOPE = 0.2; // of LeakyReLU
const EPS = 1e-5; // of LayerNorm

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

export const norm = (a) => Math.sqrt(dot(a, a));
export const times = (matrix, vector) => matrix.map((row) => dot(row, vector));

// vector' matrix
export function transposeTimes(matrix, vector) {
  const found = new Array(matrix[0].length).fill(0);
  for (let i = 0; i < matrix.length; i++) {
    for (let j = 0; j < found.length; j++) found[j] += matrix[i][j] * vector[i];
  }
  return found;
}

export function layerNorm(x) {
  const mean = x.reduce((sum, entry) => sum + entry, 0) / x.length;
  const variance = x.reduce((sum, entry) => sum + (entry - mean) ** 2, 0) / x.length;
  const spread = Math.sqrt(variance + EPS);
  return { y: x.map((entry) => (entry - mean) / spread), spread };
}

// The gradient of a function of layerNorm(x), given its gradient by y.
function throughLayerNorm(gradient, { y, spread }) {
  const mean = gradient.reduce((sum, entry) => sum + entry, 0) / y.length;
  const along = dot(gradient, y) / y.length;
  return gradient.map((entry, i) => (entry - mean - y[i] * along) / spread);
}

// scores = rows q
function linear(rows) {
  return {
    rows,
    value: (z, sq, logits) => { for (let i = 0; i < z.length; i++) logits[i] = z[i]; },
    slope: (z, sq, i, dz) => { dz[i] = 1; return 0; },
  };
}

// sqrt(d) cos(q, k); 0 for a vector of length 0
function cosine(keys) {
  const rows = keys.map((key) => {
    const long = norm(key);
    return key.map((entry) => (long > 0 ? (Math.sqrt(key.length) * entry) / long : 0));
  });
  return {
    rows,
    value: (z, sq, logits) => {
      const long = Math.sqrt(sq);
      for (let i = 0; i < z.length; i++) logits[i] = long > 0 ? z[i] / long : 0;
    },
    slope: (z, sq, i, dz) => {
      if (sq <= 0) return 0;
      dz[i] = sq ** -0.5;
      return -0.5 * z[i] * sq ** -1.5;
    },
  };
}

// -|q - k|^2 / (2 h^2)
function gaussian(keys, bandwidth) {
  const precision = bandwidth ** -2;
  const squares = keys.map((key) => dot(key, key));
  return {
    rows: keys,
    value: (z, sq, logits) => {
      for (let i = 0; i < z.length; i++) logits[i] = -0.5 * precision * (sq - 2 * z[i] + squares[i]);
    },
    slope: (z, sq, i, dz) => { dz[i] = precision; return -0.5 * precision; },
  };
}

const leaky = (x) => (x > 0 ? x : SLOPE * x);
const leakySlope = (x) => (x > 0 ? 1 : SLOPE);
const tanhSlope = (x) => 1 - Math.tanh(x) ** 2;

// sum_h v_h f(a_h + b_h), a = rows q
function pairwise(rows, b, v, f, slope) {
  return {
    rows,
    value: (z, sq, logits) => {
      for (let i = 0; i < b.length; i++) {
        let sum = 0;
        for (let h = 0; h < v.length; h++) sum += v[h] * f(z[h] + b[i][h]);
        logits[i] = sum;
      }
    },
    slope: (z, sq, i, dz) => {
      for (let h = 0; h < v.length; h++) dz[h] = v[h] * slope(z[h] + b[i][h]);
      return 0;
    },
  };
}

// A score for these keys (n, d). `own` are its parameters, `bandwidth` the h of the Gaussian.
export function lower(name, keys, own, bandwidth) {
  const d = keys[0].length;
  const inHidden = () => keys.map((key) => times(own.key, key));
  switch (name) {
    case "dot": return linear(keys);
    case "scaled_dot": return linear(keys.map((key) => key.map((entry) => entry / Math.sqrt(d))));
    case "cosine": return cosine(keys);
    case "gaussian": return gaussian(keys, bandwidth);
    case "bilinear": return linear(keys.map((key) => times(own.weight, key)));
    case "low_rank": {
      const scale = own.key.length ** -0.5;
      return linear(inHidden().map((b) => transposeTimes(own.query, b.map((x) => scale * x))));
    }
    case "additive": return pairwise(own.query, inHidden(), own.v, Math.tanh, tanhSlope);
    case "gatv2": return pairwise(own.query, inHidden(), own.v, leaky, leakySlope);
    case "gat": {
      const rows = [transposeTimes(own.query, own.u)];
      return pairwise(rows, inHidden().map((b) => [dot(own.w, b)]), [1], leaky, leakySlope);
    }
    default: throw new Error(`no score is called ${name}`);
  }
}

// Weights of these logits, their entropy in nats, and the Frobenius norm of the softmax's Jacobian.
export function softmax(logits) {
  const most = Math.max(...logits);
  const parts = logits.map((logit) => Math.exp(logit - most));
  const total = parts.reduce((sum, part) => sum + part, 0);
  const weights = parts.map((part) => part / total);
  const lse = most + Math.log(total);
  const entropy = weights.reduce((sum, w, i) => (w > 0 ? sum + w * (lse - logits[i]) : sum), 0);
  // Summed without the largest weight: its 1 - w would be lost in a sharp row.
  const peak = logits.indexOf(most);
  let rest = 0, squares = 0, cubes = 0;
  weights.forEach((w, i) => {
    if (i !== peak) { rest += w; squares += w * w; cubes += w ** 3; }
  });
  const others = squares - 2 * cubes + squares * squares;
  const jacobian = Math.sqrt(Math.max(0, weights[peak] ** 2 * (rest * rest + 2 * squares) + others));
  return { weights, entropy, jacobian, largest: weights[peak], winner: peak };
}

// The gradient of score i by the query (d).
function scoreGradient(lowered, z, query, i) {
  const dz = new Array(z.length).fill(0);
  const bySquare = lowered.slope(z, dot(query, query), i, dz);
  const gradient = query.map((entry) => 2 * bySquare * entry);
  lowered.rows.forEach((row, r) => {
    if (dz[r] !== 0) for (let j = 0; j < row.length; j++) gradient[j] += dz[r] * row[j];
  });
  return gradient;
}

// One query against the keys of a lowered score: all that the page shows of it.
//   scores       before the temperature
//   output       the values, weighted
//   scoreSlope   |d score of the chosen key / d query|
//   weightSlope  |d weight of the chosen key / d query|
export function attend(lowered, query, values, { temperature, normalized, chosen }) {
  const changed = normalized ? layerNorm(query) : null;
  const seen = changed ? changed.y : query;
  const z = times(lowered.rows, seen);
  const scores = new Array(values.length).fill(0);
  lowered.value(z, dot(seen, seen), scores);
  const found = softmax(scores.map((score) => score / temperature));
  const gradients = scores.map((_, i) => {
    const gradient = scoreGradient(lowered, z, seen, i);
    return changed ? throughLayerNorm(gradient, changed) : gradient;
  });
  const { weights } = found;
  const mean = query.map((_, j) => gradients.reduce((sum, g, i) => sum + weights[i] * g[j], 0));
  const own = gradients[chosen];
  return {
    ...found,
    scores,
    output: values[0].map((_, j) => values.reduce((sum, v, i) => sum + weights[i] * v[j], 0)),
    scoreSlope: norm(own),
    weightSlope: (weights[chosen] / temperature) * norm(own.map((entry, j) => entry - mean[j])),
  };
}

// Which key wins, and by which weight, for every place of the query in a square.
//   start, along, up   the query is start + x along + y up (d)
//   ticks              places along an edge, from - to +; the first row is the top
export function decide(lowered, { start, along, up, ticks, keys, temperature, normalized }) {
  const size = ticks.length, d = start.length, total = (a) => a.reduce((sum, x) => sum + x, 0);
  const parts = lowered.rows.map((row) => [dot(row, start), dot(row, along), dot(row, up), total(row)]);
  const sums = [total(start), total(along), total(up)];
  // |start + x along + y up|^2, where along and up are at right angles
  const squares = [[start, start, 1], [start, along, 2], [start, up, 2], [along, along, 1], [up, up, 1]]
    .map(([a, b, times]) => times * dot(a, b));
  const winners = new Uint8Array(size * size), sure = new Float32Array(size * size);
  const z = new Float64Array(parts.length), logits = new Float64Array(keys);
  for (let row = 0; row < size; row++) {
    const y = -ticks[row];
    for (let column = 0; column < size; column++) {
      const x = ticks[column];
      let sq = squares[0] + squares[1] * x + squares[2] * y + squares[3] * x * x + squares[4] * y * y;
      let mean = 0, spread = 1;
      if (normalized) {
        mean = (sums[0] + sums[1] * x + sums[2] * y) / d;
        const variance = Math.max(0, sq / d - mean * mean);
        spread = Math.sqrt(variance + EPS);
        sq = (d * variance) / (spread * spread);
      }
      for (let r = 0; r < z.length; r++) {
        const p = parts[r];
        z[r] = (p[0] + p[1] * x + p[2] * y - mean * p[3]) / spread;
      }
      lowered.value(z, sq, logits);
      let best = 0, sum = 0;
      for (let i = 1; i < keys; i++) if (logits[i] > logits[best]) best = i;
      for (let i = 0; i < keys; i++) sum += Math.exp((logits[i] - logits[best]) / temperature);
      winners[row * size + column] = best;
      sure[row * size + column] = 1 / sum;
    }
  }
  return { size, winners, sure };
}

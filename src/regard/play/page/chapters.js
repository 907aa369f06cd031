// The initial states of the chapters in docs/learn/: each lists what differs from free play.
// Titles and instructions are in text.js, and the tests check that what they say is true.
// Learned scores are untrained. Each seed was chosen so that their weights still show the point.

const RING = [[1.8, 0.6], [0, 1.9], [-1.8, 0.6], [-1.1, -1.5], [1.1, -1.5]];
const CLOUD = [[0.9, 0.9], [1.5, -0.2], [-0.7, 1.4], [-1.6, -0.9], [0.6, -1.7], [2.2, 1.9]];

export const CHAPTERS = [
  // Scores of 2, 1 and 0, which are easy to check by hand.
  { score: "dot", q: [1, 1], k: [[2, 0], [0, 1], [-1, 1]] },
  { score: "additive", q: [0.8, 1.4], k: RING, qn: 2 },
  { score: "dot", d: 64, q: [0.6, 0.9], k: [...RING, [2.2, -0.4]] },
  { score: "scaled_dot", q: [1.4, 0.9], k: RING, t: 0.15 },
  { score: "additive", q: [1.5, 0.4], k: RING, loud: 20, who: 4, seed: 324 },
  { score: "gaussian", q: [0.4, 0.3], k: CLOUD, h: 0.5 },
  { view: "sentence", score: "scaled_dot", pos: 1, seed: 54 },
  { score: "cosine", d: 16, q: [1.5, 0.4], k: RING, loud: 8, who: 4, seed: 53 },
];

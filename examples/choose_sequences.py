"""Which attention for sequences? Words of different number with a tag for each go to an answer.

The tag of a word depends on the word before it, so a model without attention to others cannot know it.
"""

import numpy as np

import regard

draw = np.random.default_rng(0)
words, tags = [], []
for _ in range(300):
    sentence = draw.choice(["the", "to", "run", "walk", "drink"], draw.integers(3, 9)).tolist()
    before = ["", *sentence[:-1]]
    words.append(sentence)
    tags.append(["verb" if left == "to" else "noun" for left in before])

verdict = regard.choose(
    {"words": words, "tags": tags},  # or a Parquet file with these columns of lists
    key="words",
    target="tags",
    heads=2,
    scores=[
        "cosine"
    ],  # leave the next five lines out for an answer: so few steps and seeds decide little
    stabilizers=["none"],
    rates=[1e-2],
    steps=120,
    seeds=3,
    progress=False,
)
print(verdict)

best = max(sum(row.quality.values()) / len(row.quality) for row in verdict.rows if row.quality)
print(f"{best:.1%} of the tags are right; always the commonest tag: {verdict.chance.value:.1%}")
assert best > verdict.chance.value + 0.02

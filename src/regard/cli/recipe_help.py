"""Help texts of `regard recipe`."""

from __future__ import annotations

LIST = """List the recipes: real tasks, each a small model that takes any attention score.

Every recipe has data that come with a package, so that it trains on a fresh machine; public benchmarks are
read from --data, REGARD_DATA or a download.

\b
Examples:
  regard recipe
  regard recipe letters train
  regard recipe letters predict hello world
  regard recipe translate train --set multi30k-de-en --data DIR
  regard recipe graph compare --jobs 2
  regard recipe graph show --to graph.svg
  regard recipe --json

Exit codes: 0 done; 1 a check failed, or a result could not be saved; 2 a mistake in the arguments or the
data; 130 interrupted.
"""
ONE = """{about}

\b
Examples:
  regard recipe {name} train
  regard recipe {name} compare
  regard recipe {name} show --lang zh

Exit codes: 0 done; 1 a check failed, or a result could not be saved; 2 a mistake in the arguments or the
data; 130 interrupted.
"""
TRAIN = """Train a model at the recipe's default size and save it.

Every few seconds, after a whole epoch, the training is kept in FILE.checkpoint beside --out: after a kill the same
command goes on from it, to the same result. It is removed when the model is saved.

\b
Examples:
  regard recipe letters train
  regard recipe letters train --score additive --out additive.safetensors
  regard recipe translate train --set multi30k-de-en --data DIR --device cuda
  regard recipe letters train --set fre --download --doctor

Exit codes: 0 done; 1 the model could not be saved, the training diverged, or --doctor found a failure; 2 a
mistake in the arguments or the data; 130 interrupted (the same command continues).
"""
PREDICT = """Predict for inputs that are given as TEXT, by --file, or by a pipe, one a line.

\b
Examples:
  regard recipe letters predict attention regard
  regard recipe translate predict --file in.txt --to out.txt --beam 5
  regard recipe molecules predict CCO "c1ccccc1O"
  echo CCO | regard recipe molecules predict --model mine.safetensors

Exit codes: 0 done; 1 the output could not be written; 2 a mistake in the arguments, the input or the model file;
130 interrupted.
"""
COMPARE = """Compare every score and the baselines under equal tuning.

Settings are chosen on validation rows, never on test rows. Intervals are for new seeds and new test rows. Each
finished run is kept in DIR/runs, and the same command continues. The results are NAME.json and NAME.html, a page in
English and Chinese.

\b
Examples:
  regard recipe graph compare
  regard recipe graph compare --set cora --data DIR --full --jobs 8
  regard recipe translate compare --seeds 3 --only additive --lang zh
  regard recipe graph compare --json

Exit codes: 0 done; 1 a contender failed, or a file could not be written; 2 a mistake in the arguments or the data;
130 interrupted, or stopped by --minutes (the same command continues).
"""
SHOW = """Draw what a trained model attends to, for TEXT or for an example of the recipe.

\b
Examples:
  regard recipe letters show attention --to attention.svg
  regard recipe translate show "ein Hund läuft im Park ." --to alignment.png
  regard recipe molecules show "CC(=O)Oc1ccccc1C(=O)O" --lang zh

Exit codes: 0 done; 1 the picture could not be written; 2 a mistake in the arguments, the input or the model file;
130 interrupted.
"""

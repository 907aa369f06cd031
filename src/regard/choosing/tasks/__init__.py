"""The data on which `regard choose` compares scores.

- Tasks that come with it: `embedded.py` synthetic ones with a known answer, `real.py` real data.
- The user's data, from a source to a task: `header.py`, `reading.py`, `arrow.py`, `delimited.py` and `frames.py` read
  files and frames as columns (`columns.py`); `roles.py` says which column plays which part; `inputs.py`, `labels.py`
  and `masks.py` make tensors of them; `files.py` (a query and its keys), `sequences.py` (keys that attend to one
  another) and `judged.py` (queries, documents, judgements) make the task; `asked.py` is the entry of
  `regard.choose`.
- Models: `models.py` and `sequence_model.py`.
"""

"""Running claims: processes (`runner.py`, `worker.py`), progress, results on disk, digests of their code."""

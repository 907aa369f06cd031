"""Opens the model to examine: from a user's function, a Hugging Face folder, or a bundled example.

Code that turns a name on the command line into a model, batches and a loss belongs here, with error
messages for the user. Running and training the model is in `checkup.py`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from regard.doctor.patients.bundled import EXAMPLES, open_example
from regard.doctor.patients.data import open_data
from regard.doctor.patients.folder import open_folder, open_tokenizer
from regard.doctor.patients.function import open_function
from regard.doctor.patients.made_up import made_up
from regard.doctor.patients.patient import Patient, Unusable, no_batch

__all__ = ["EXAMPLES", "Patient", "Unusable", "open_patient"]


def open_patient(name: str, data: Path | None = None, *, seed: int = 0, size: int = 8) -> Patient:
    """The patient with the name that a user gave.

    Args:
        name: a bundled example, a folder, or `package.module:function`.
        data: a file of data; without it, the patient's own batches are used, or random ones.
        seed: the seed of the weights and of random batches.
        size: the size of batches from a file.
    """
    torch.manual_seed(seed)
    folder, tokenizer = Path(name), None
    if name in EXAMPLES:
        patient, has_data = open_example(name, seed), True
    elif folder.is_dir():
        model, said = open_folder(folder)
        patient, has_data = Patient(name, model, no_batch, said=said), False
        tokenizer = open_tokenizer(folder) if data is not None and data.suffix == ".txt" else None
    elif ":" in name:
        patient, has_data = open_function(name)
    else:
        raise Unusable(
            f"{name!r} is not a folder, a package.module:function, or one of the bundled examples "
            f"{', '.join(EXAMPLES)}"
        )
    if data is not None:
        patient.batch = open_data(data, patient.model, size, tokenizer)
    elif not has_data:
        patient.batch, words = made_up(patient.model, seed)
        patient.made_up = True
        patient.said.append(f"no data was given: the batches are made up, {words}")
    return patient

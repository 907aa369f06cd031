"""Kernels without a folder to be kept in, without numba, and what is said while they compile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from regard.engines.native import absent, jit

needs_numba = pytest.mark.skipif(absent() is not None, reason="numba is not installed")
MODULE = """
from regard.engines.native import jit, kernel

@kernel
def twice(x):
    return x + x

@kernel
def four_times(x):
    return twice(twice(x))
"""


def in_folder(path, code, **environment):
    module = path / "made_here.py"
    if not module.exists():  # its date is part of what numba compares
        module.write_text(MODULE)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *sys.path]), **environment}
    env = {name: value for name, value in env.items() if value is not None}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env)


RUN = "import made_here; assert made_here.four_times(1.5) == 6.0; print(made_here.jit.folder())"


@needs_numba
def test_kernels_are_kept_and_the_compilation_is_announced_once(tmp_path):
    first = in_folder(tmp_path, RUN)
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip() == str(tmp_path / "__pycache__")
    assert first.stderr.count("compiling kernels") == 1 and first.stdout.strip() in first.stderr
    assert list((tmp_path / "__pycache__").glob("*.nbc"))
    again = in_folder(tmp_path, RUN)
    assert again.returncode == 0 and "compiling" not in again.stderr


@needs_numba
@pytest.mark.parametrize("home", ["/dev/null/nobody", None])
def test_kernels_run_where_no_folder_can_be_written(tmp_path, home):
    """A file in place of `__pycache__` stops even root, whom a read-only folder would not."""
    (tmp_path / "__pycache__").touch()
    # Without HOME numba asks the password database; a cache folder below a device stops that as well.
    done = in_folder(tmp_path, RUN, HOME=home, XDG_CACHE_HOME="/dev/null/nowhere")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None"
    assert "not kept" in done.stderr


@needs_numba
def test_kernels_run_where_the_folder_is_full(tmp_path):
    code = (
        "import numba.core.caching as c\n"
        "def full(*_): raise OSError(28, 'No space left on device')\n"
        "c.IndexDataCacheFile.save = full\n" + RUN
    )
    done = in_folder(tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_without_numba_the_reason_says_what_to_install(monkeypatch):
    monkeypatch.setattr(jit, "INSTALLED", False)
    assert jit.absent() == "numba is not installed: pip install 'regard[cpu]'"


def test_a_numba_that_does_not_load_is_a_reason(monkeypatch):
    def broken(name):
        raise ImportError("Numba needs NumPy 2.3 or less")

    monkeypatch.setattr(jit.importlib, "import_module", broken)
    assert "NumPy 2.3 or less" in jit.fails.__wrapped__()

"""Benchmarks run in this process."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings

import pytest
import torch

__all__ = ["run_here"]


def run_here(script: str, *arguments: str) -> str:
    """Return the text that a benchmark, a module below ``benchmarks``, prints."""
    output = io.StringIO()
    threads, allows_tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr("sys.argv", [script, *arguments])
        importlib.import_module(f"benchmarks.{script}").main()
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = allows_tf32
    return output.getvalue()

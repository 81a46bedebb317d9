"""Layers and import side effects, as in docs/architecture.md."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_import_contracts():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_importing_the_library_has_no_side_effects():
    """Neither slow optional modules nor changes of torch's global state."""
    script = """
import sys, torch
def state():
    return torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled()
before = state()
import daedl
daedl.Classifier
assert state() == before
assert not {'matplotlib', 'jinja2', 'typer'} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)

"""The rooms and the direction of imports, as docs/architecture.md draws them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_point_one_way():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_importing_the_library_loads_neither_pictures_nor_command_line():
    script = "import sys, daedl; print([m for m in ('matplotlib', 'jinja2', 'typer') if m in sys.modules])"
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output.strip() == "[]"


def test_importing_changes_nothing_global_in_torch():
    script = """
import torch
before = (torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled())
import daedl
assert before == (torch.get_default_dtype(), torch.initial_seed(), torch.is_grad_enabled())
"""
    subprocess.run([sys.executable, "-c", script], check=True)

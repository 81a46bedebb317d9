"""Files that describe what is installed agree with pyproject.toml."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")


def requirements() -> list[Requirement]:
    """Requirements of the library and of the extras that `dev` contains, without the library itself."""
    names = ("export", "serve", "pretrained", "text", "ray", "dev")
    extras = [each for name in names for each in PROJECT["optional-dependencies"][name]]
    required = map(Requirement, [*PROJECT["dependencies"], *extras])
    return [each for each in required if each.name != PROJECT["name"]]


def test_the_lock_has_a_hashed_version_within_the_bounds_of_every_requirement():
    locked = dict(re.findall(r"^([\w-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", LOCK, re.M))
    assert len(locked) == len(re.findall(r"^\w", LOCK, re.M))
    for each in requirements():
        if each.name != "torch":  # its wheels differ per accelerator
            assert each.specifier.contains(locked[canonicalize_name(each.name)]), each


def test_the_lock_names_no_registry():
    assert "://" not in LOCK
    assert "--index" not in LOCK


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {PROJECT['version']}\n" in citation

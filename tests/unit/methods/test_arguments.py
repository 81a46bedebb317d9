"""Arguments of methods: those that identify figures, and those of earlier model files."""

import hashlib
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from daedl import methods
from daedl.methods import DAEDL, DDU, Ensemble, Mahalanobis, Retrofit


def digest(method):
    text = json.dumps(method.arguments(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Computed before rank and normalize_features existed.
BEFORE = {
    DAEDL(): "6086cf5b609fb3e0",
    DAEDL(leave_one_out=True): "5c480132cd2dbf48",
    Retrofit(): "74047c97a7b8d752",
    DDU(): "463a4dcdfd557ef3",
    Mahalanobis(): "463a4dcdfd557ef3",
}


@pytest.mark.parametrize("method", BEFORE, ids=str)
def test_arguments_of_earlier_figures_are_unchanged(method):
    assert digest(method) == BEFORE[method]


@pytest.mark.parametrize("method", [DAEDL, Retrofit, DDU, Mahalanobis])
def test_later_settings_are_arguments_unless_they_are_neutral(method):
    normalized = method(normalize_features=True)
    assert normalized.arguments() == {**method().arguments(), "normalize_features": True}
    assert methods.rebuild(method.name, normalized.arguments()) == normalized
    assert methods.rebuild(method.name, method().arguments()) == method()


def test_later_settings_of_base_classes_are_added():
    @dataclass(frozen=True, kw_only=True)
    class Later(DAEDL):
        since: ClassVar = {"added": 1}
        added: int = 2

    assert Later.since == {**DAEDL.since, "added": 1}
    assert Later().arguments() == {**DAEDL().arguments(), "added": 2}
    assert Later(added=1).arguments() == DAEDL().arguments()


def test_files_that_lack_a_setting_do_not_follow_its_default(monkeypatch):
    """A later version may normalise features by default."""

    @dataclass(frozen=True, kw_only=True)
    class Later(DAEDL):
        normalize_features: bool = True

    monkeypatch.setattr(methods, "METHODS", {**methods.METHODS, "daedl": Later})
    assert methods.build("daedl").normalize_features
    written = DAEDL().arguments()
    assert not methods.rebuild("daedl", written).normalize_features
    assert methods.rebuild("daedl", Later().arguments()) == Later()
    ensemble = methods.rebuild("ensemble", Ensemble(member=DAEDL()).arguments())
    assert not ensemble.member.normalize_features

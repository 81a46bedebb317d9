"""Training with Lightning Fabric, followed by the method's post-hoc fit."""

from daedl.training.callbacks import Callback
from daedl.training.chance import ChanceWarning
from daedl.training.feature_cache import CacheWarning
from daedl.training.fit import fit
from daedl.training.frozen import fit_frozen
from daedl.training.history import Epoch, History
from daedl.training.optimizers import OneCycle, sgd
from daedl.training.recipe import (
    Recipe,
    embedding_recipe,
    estimated_seconds,
    finetuning,
    image_recipe,
)

__all__ = [
    "CacheWarning",
    "Callback",
    "ChanceWarning",
    "Epoch",
    "History",
    "OneCycle",
    "Recipe",
    "embedding_recipe",
    "estimated_seconds",
    "finetuning",
    "fit",
    "fit_frozen",
    "image_recipe",
    "sgd",
]

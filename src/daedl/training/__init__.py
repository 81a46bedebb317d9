"""Training with Lightning Fabric, followed by the method's post-hoc fit."""

from daedl.training.callbacks import Callback
from daedl.training.fit import fit
from daedl.training.loop import Epoch, History

__all__ = ["Callback", "Epoch", "History", "fit"]

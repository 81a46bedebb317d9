"""State that methods fit after training."""

from collections.abc import Mapping
from typing import Any, Self, get_type_hints

import msgspec
from torch import Tensor, nn


class Fitted(nn.Module):
    """Base of simple fitted states: constructor arguments that are tensors become buffers, others settings.

    A model file stores `state_dict()` and `settings()`, from which `restore` calls the constructor again.
    Tensors that the constructor derives are registered as buffers with `persistent=False`.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._settings = [name for name in arguments if not isinstance(arguments[name], Tensor)]
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable arguments of the constructor."""
        return {name: getattr(self, name) for name in self._settings}

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Rebuild the state from its `state_dict()` and `settings()`, whose types are those of the class."""
        hints = get_type_hints(cls)
        typed = {k: msgspec.convert(v, hints.get(k, Any)) for k, v in settings.items()}
        return cls(**tensors, **typed)

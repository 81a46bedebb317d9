"""Hidden states that the frozen layers of an encoder return, kept while the layers after them are trained."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from daedl.outputs import evaluating

# Bytes of hidden states that are kept (chosen): of 60,000 texts of 11 tokens with 384 numbers each.
CAPACITY = 2**30


class Memory:
    """Runs a model of transformers; texts that it has seen start at the first trained layer.

    Results are equal up to rounding. Layers that can't start in the middle, because they pass on more than
    hidden states, are recognised with the first texts, and always run from the start.

    Arguments:
        model: maps token ids and attention masks (B, T) to an object with `last_hidden_state`.
        layers: dotted name of its list of layers.
        first: number of the first trained layer; those before it and the embeddings are frozen.
        capacity: bytes after which no further texts are kept.
    """

    def __init__(self, model: nn.Module, layers: str, first: int, capacity: int = CAPACITY) -> None:
        owner, _, self.name = layers.rpartition(".")
        self.model, self.owner, self.first = model, model.get_submodule(owner), first
        self.left = capacity
        self.states: dict[tuple[bytes, bool], Tensor] = {}
        self.resumes: bool | None = None

    def run(self, tokens: Mapping[str, Tensor], lengths: Tensor) -> Tensor:
        """Maps token ids and attention masks (B, T) to the last hidden state (B, T, H).

        Arguments:
            lengths: tokens without trailing padding (B,); T is the largest.
        """
        if self.resumes is None:
            self.resumes = self._can_resume(tokens)
        if not self.resumes:
            return self._last(tokens)
        keys = _keys(tokens, lengths)
        known = [self.states[key] for key in keys if key in self.states]
        if len(known) == len(keys):
            return self._resumed(tokens, pad_sequence(known, batch_first=True))
        states, last = self._observed(tokens)
        for key, state, length in zip(keys, states, lengths.tolist(), strict=True):
            self._keep(key, state[:length])
        return last

    def _keep(self, key: tuple[bytes, bool], state: Tensor) -> None:
        if key not in self.states and state.nbytes <= self.left:
            self.states[key] = state.clone()
            self.left -= state.nbytes

    def _can_resume(self, tokens: Mapping[str, Tensor]) -> bool:
        with evaluating(self.model), torch.no_grad():
            try:
                states, expected = self._observed(tokens)
                return torch.allclose(self._resumed(tokens, states), expected, rtol=1e-3, atol=1e-4)
            except Exception:  # the model's own code without layers that it may rely on
                return False

    def _last(self, tokens: Mapping[str, Tensor]) -> Tensor:
        state: Tensor = self.model(**tokens).last_hidden_state
        return state

    def _observed(self, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the states that the first trained layer receives, and the last ones."""
        received: list[Tensor] = []
        with self._on_entry(lambda arguments: received.append(arguments[0])):
            last = self._last(tokens)
        return received[0], last

    def _resumed(self, tokens: Mapping[str, Tensor], states: Tensor) -> Tensor:
        """Returns the last states from those that the first trained layer receives."""
        layers: Any = getattr(self.owner, self.name)
        with self._on_entry(lambda arguments: (states, *arguments[1:])):
            setattr(self.owner, self.name, layers[self.first :])
            try:
                return self._last(tokens)
            finally:
                setattr(self.owner, self.name, layers)

    @contextmanager
    def _on_entry(self, action: Callable[[tuple[Any, ...]], Any]) -> Iterator[None]:
        """Calls `action` with the arguments of the first trained layer; they become what it returns."""
        layer = getattr(self.owner, self.name)[self.first]
        handle = layer.register_forward_pre_hook(lambda _, arguments: action(arguments))
        try:
            yield
        finally:
            handle.remove()


def _keys(tokens: Mapping[str, Tensor], lengths: Tensor) -> Sequence[tuple[bytes, bool]]:
    """What determines the hidden states of each text: its tokens, and whether precision is mixed."""
    rows = torch.stack([each.cpu() for each in tokens.values()], 1).numpy()
    mixed = torch.is_autocast_enabled(lengths.device.type)
    return [
        (row[:, :length].tobytes(), mixed)
        for row, length in zip(rows, lengths.tolist(), strict=True)
    ]

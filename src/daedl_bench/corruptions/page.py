"""The tables of docs/corruptions.md."""

from daedl_bench.corruptions.families import Family, Number
from daedl_bench.names import markdown


def table(family: Family) -> str:
    """The corruptions of a family with their parameters."""
    heads = ["corruption", "description", "parameters", "deviation", "not monotonic"]
    lines = [
        [
            f"`{name}`",
            each.description,
            "; ".join(f"{key} {_text(value)}" for key, value in each.parameters.items()),
            each.deviation,
            ", ".join(map(str, each.not_monotonic)),
        ]
        for name, each in family.corruptions.items()
    ]
    shown = len(heads) - (family.severities == 1)
    return markdown(heads[:shown], [line[:shown] for line in lines])


def _text(value: Number | tuple[Number, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " / ".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))

"""The report as Markdown with image files, and rendered to one HTML file that contains them."""

import itertools
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import escape

from daedl.figures import DOTS_PER_INCH
from daedl.report.html import inline, render
from daedl_bench.report.pictures import Picture

PACKAGE = "daedl_bench.report"
_MARK = re.compile(r" ([▲▼=]) ([+−]\d+\.\d\d)</td>")
_CLASSES = {"▲": "better", "▼": "worse", "=": "equal"}
_PIXELS_PER_INCH = 96  # of CSS


def markdown(content: Mapping[str, Any]) -> str:
    """The report in Markdown; pictures are files `<name>.png` in the same folder."""
    return render(PACKAGE, "report.md.j2", **content)


def html(report: str, pictures: Mapping[str, Picture]) -> str:
    """Render the Markdown `report` to one HTML file with its `pictures`, by name.

    HTML in the Markdown is escaped, so that findings and labels cannot add elements.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("image", _image)
    tokens, sections = parser.parse(report), {}
    for token, heading in itertools.pairwise(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            anchor = re.sub(r"\W+", "-", heading.content.lower()).strip("-")
            token.attrSet("id", anchor)
            sections[anchor] = heading.content
    body = parser.renderer.render(tokens, parser.options, {"pictures": pictures})
    body = body.replace("<table>", '<div class="scroll"><table>')
    body = body.replace("</table>", "</table></div>").replace(" ± ", "\N{NBSP}±\N{NBSP}")
    return render(PACKAGE, "page.html.j2", sections=sections, body=_MARK.sub(_small, body))


def _small(match: re.Match[str]) -> str:
    """A mark and the difference to the published figure, on a line of their own."""
    mark, difference = match.groups()
    return f'<small class="{_CLASSES[mark]}">{mark} {difference}</small></td>'


def _image(_: Any, tokens: Sequence[Token], place: int, __: Any, env: Mapping[str, Any]) -> str:
    """Render a picture in its printed size, or smaller on a narrow screen."""
    picture = env["pictures"].get(str(tokens[place].attrs["src"]).removesuffix(".png"))
    if picture is None:  # of findings.md: the page refers to no other file
        return str(escape(tokens[place].content))
    (pixels,) = struct.unpack(">I", picture.data[16:20])  # the width in the header of a PNG file
    width = round(pixels / DOTS_PER_INCH * _PIXELS_PER_INCH)
    image = f'<img src="{inline(picture.data)}" alt="{escape(picture.caption)}" width="{width}">'
    if picture.narrow is None:
        return image
    source = f'<source media="(max-width: 640px)" srcset="{inline(picture.narrow)}">'
    return f"<picture>{source}{image}</picture>"

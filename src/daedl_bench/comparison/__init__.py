"""The report that puts the paper's tables beside what was measured here.

measured.py                            rows -> figures over seeds
criteria.py                            by what methods are compared, and who leads by it
compare.py, further.py, missing.py,
choice.py                              figures -> tables, as text
protocols.py                           what was run, in words
drawing.py, pictures.py                figures and cached predictions -> pictures
page.py, and the templates             all of it -> Markdown and HTML
"""

from pathlib import Path

from daedl.storage import require_folder, write_atomically
from daedl_bench import two_moons
from daedl_bench.comparison import measured, page, pictures
from daedl_bench.spec import Catalogue
from daedl_bench.workspace import Load


def write(results: Path, out: Path, *, catalogue: Catalogue, cache: Path, load: Load) -> Path:
    """Write report.md, report.html and the pictures into the folder `out`; the path of the HTML file.

    Arguments:
        results: the folder with the rows; a file findings.md there, of what people found out about
            them in paragraphs and ### headings, becomes a section, and so does two-moons.png.
        cache: the folder with trained networks and their outputs, which pictures are drawn from;
            nothing is trained, and the tables are written without it.
        load: gives images where the cache has a network but not its outputs.
    """
    found = measured.load(results, catalogue)
    out = out.absolute()
    require_folder(out, "choose another with --out")
    findings, figure = results / "findings.md", results / f"{two_moons.NAME}.png"
    content = page.gather(
        found,
        pictures.of_networks(found, cache, load),
        pictures.of_corruptions(found),
        findings.read_text("utf-8") if findings.exists() else "",
        figure.read_bytes() if figure.exists() else None,
    )
    if content.moons_picture is not None:
        write_atomically(out / figure.name, content.moons_picture)
    galleries = (*content.networks, *content.corruptions)
    shown = [picture for gallery in galleries for picture in gallery.pictures]
    for picture in (*shown, *(picture for _, picture in content.choices)):
        write_atomically(out / f"{picture.name}.png", picture.data)
    write_atomically(out / "report.md", page.markdown(content).encode())
    write_atomically(out / "report.html", page.html(content).encode())
    return out / "report.html"

"""The web page in Chromium: files, drawings, errors and the token; no external resources."""

import shutil
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from app_client import running
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    FilePayload,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

import daedl
from daedl.networks import MLP, ConvNet
from daedl.serving import ServerConfig, create_app
from tiny_encoder import write_encoder

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE, DESKTOP = {"width": 412, "height": 844}, {"width": 1280, "height": 900}
MAX_BYTES = 100_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(model) -> Iterator[str]:
    with running(create_app(model, ServerConfig(max_bytes=MAX_BYTES))) as url:
        yield url


@pytest.fixture
def open_page(browser) -> Iterator[OpenPage]:
    """Opens the page; errors and external requests fail the test."""
    contexts, problems = [], []

    def open_page(url: str, viewport: dict = DESKTOP) -> Page:
        context = browser.new_context(viewport=viewport)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))

        def check_console(message: ConsoleMessage) -> None:
            # The browser logs rejected requests itself.
            if message.type == "error" and "Failed to load" not in message.text:
                problems.append(message.text)

        def check_request(request: Request) -> None:
            if not request.url.startswith((url, "blob:", "data:")):
                problems.append(request.url)

        page.on("console", check_console)
        page.on("request", check_request)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def choose(page: Page, *files: FilePayload | bytes) -> None:
    """Choose files; bytes are the content of a PNG file."""
    page.wait_for_selector("#work:not([hidden])")
    uploads = [upload(each) if isinstance(each, bytes) else each for each in files]
    page.set_input_files("#file", uploads)


def upload(data: bytes, name: str = "a.png", kind: str = "image/png") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": data}


def drag(page: Page, *points: tuple[float, float]) -> None:
    """Draw a stroke through points, given as shares of the drawing area."""
    box = page.locator("#pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=5)
    page.mouse.up()


def width(track: Locator) -> float:
    """Return the filled percentage of a track."""
    return float(track.locator(".fill").evaluate("each => parseFloat(each.style.width)"))


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_file(open_page, url, model, pixels, encode, viewport) -> None:
    page = open_page(url, viewport)
    expect(page.locator("#facts")).to_have_text(
        "ConvNet with daedl, 3 classes; 8 × 8 pixels, grey."
    )
    choose(page, encode(pixels[1]))
    p = model.predict(pixels[1:2] / 255)
    assert p.accept.all()
    expect(page.locator("#class-name")).to_have_text(f"column{100 * float(p.probs.max()):.1f}%")
    expect(page.locator("#decision")).to_have_text("Accepted")
    expect(page.locator("#reason")).to_contain_text(
        "similar enough to the training data, and the class is certain enough"
    )
    expect(page.locator("#density-value")).to_have_text(f"{float(p.density_score):.2f}")
    assert width(page.locator("#density-track")) == pytest.approx(
        100 * float(p.density_score), abs=0.1
    )
    alpha0 = float(page.locator("#alpha0-value").inner_text().replace(",", ""))
    assert alpha0 == pytest.approx(float(p.alpha.sum()), rel=0.01)
    names = page.locator("#bars .name").all_inner_texts()
    assert names == model.class_names
    tracks = page.locator("#bars .track").all()
    for track, share in zip(tracks, p.probs[0].tolist(), strict=True):
        assert width(track) == pytest.approx(100 * share, abs=0.1)
    expect(page.locator("#preview")).to_be_visible()
    expect(page.locator("#thresholds")).to_contain_text("at most 10.00%")
    # No horizontal scrolling.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def drop(page: Page, *contents: bytes) -> None:
    """Drop PNG files on the page."""
    page.wait_for_selector("#work:not([hidden])")
    transfer = page.evaluate_handle(
        """files => {
            const transfer = new DataTransfer();
            for (const bytes of files)
                transfer.items.add(new File([new Uint8Array(bytes)], "n.png", { type: "image/png" }));
            return transfer;
        }""",
        [list(each) for each in contents],
    )
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})


def test_a_dropped_file_is_rejected_with_a_reason(open_page, url, noise, encode) -> None:
    page = open_page(url)
    page.click("#tab-draw")
    drop(page, encode(noise))
    expect(page.locator("#decision")).to_have_text("Rejected: ask a person")
    expect(page.locator("#reason")).to_have_text("Unlike the training data.")
    expect(page.locator("#density-note")).to_contain_text("Unlike the training data")
    expect(page.locator("#panel-file")).to_be_visible()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_several_files_are_a_grid(open_page, url, pixels, noise, encode, viewport) -> None:
    page = open_page(url, viewport)
    name = "<img src=x onerror=alert(1)>.png"  # must not be parsed as HTML
    choose(page, encode(pixels[0]), upload(b"no image", name), encode(noise), encode(pixels[1]))
    expect(page.locator("#counts")).to_have_text("4 images: 2 accepted, 1 rejected, 1 failed.")
    first, broken, strange, second = page.locator(".item").all()
    expect(first.locator(".class-name")).to_contain_text("row")
    expect(first.locator(".decision")).to_have_text("Accepted")
    expect(broken.locator(".file")).to_have_text(name)
    expect(broken.locator(".reason")).to_contain_text("unknown format")
    expect(strange.locator(".reason")).to_have_text("Unlike the training data.")
    expect(page.locator("#prediction")).to_be_hidden()
    second.locator("button").click()
    expect(page.locator("#class-name")).to_contain_text("column")
    expect(page.locator("#prediction")).to_be_in_viewport()
    expect(page.locator(".selected .file")).to_have_text("a.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_new_choice_replaces_the_grid(open_page, url, pixels, encode) -> None:
    page = open_page(url)
    drop(page, *(encode(each) for each in pixels))
    expect(page.locator(".item")).to_have_count(6)
    choose(page, encode(pixels[0]))
    expect(page.locator("#class-name")).to_contain_text("row")
    expect(page.locator("#grid")).to_be_hidden()
    expect(page.locator(".item")).to_have_count(0)


def test_the_number_of_cards_is_bounded(open_page, url) -> None:
    page = open_page(url)
    drop(page, *[b"x"] * 501)
    expect(page.locator("#error")).to_contain_text("first 500")
    expect(page.locator(".item")).to_have_count(500)


def model_input(page: Page) -> np.ndarray:
    """Return the displayed input of the model (8, 8)."""
    script = "e => [...e.getContext('2d').getImageData(0, 0, 8, 8).data]"
    return np.reshape(page.locator("#input").evaluate(script), (8, 8, 4))[..., 0]


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for a condition; playwright's `wait_for_function` violates the security policy."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_drawing_is_predicted_and_cleared(open_page, url) -> None:
    page = open_page(url, PHONE)
    page.click("#tab-draw")
    page.uncheck("#centre")
    drag(page, (0.44, 0.03), (0.44, 0.97))
    expect(page.locator("#class-name")).to_contain_text("column")
    page.click("#clear")
    expect(page.locator("#result")).to_be_hidden()
    drag(page, (0.03, 0.44), (0.97, 0.44))
    expect(page.locator("#class-name")).to_contain_text("row")
    assert model_input(page)[0].max() < 50
    assert model_input(page)[3].min() > 100
    page.check("#dark")  # inverts the drawing
    until(lambda: model_input(page)[0].min() > 200)
    assert model_input(page)[3].max() < 150
    expect(page.locator("#decision")).to_have_text("Rejected: ask a person")


def test_a_drawing_is_centred(open_page, url) -> None:
    page = open_page(url)
    page.click("#tab-draw")
    drag(page, (0.1, 0.1), (0.1, 0.3))
    expect(page.locator("#result")).to_be_visible()
    assert set(model_input(page).sum(0).argsort()[-2:]) == {3, 4}
    page.uncheck("#centre")
    until(lambda: model_input(page).sum(0).argmax() == 0)
    assert model_input(page)[5:].max() < 20


def test_errors_are_shown_until_the_next_prediction(open_page, url, pixels, encode) -> None:
    page = open_page(url, PHONE)
    error = page.locator("#error")
    choose(page, b"no image at all")
    expect(error).to_contain_text("unknown format")
    expect(page.locator("#result")).to_be_hidden()
    choose(page, upload(b"GIF89a", "a.gif", "image/gif"))
    expect(error).to_contain_text("image/gif")
    choose(page, encode(pixels[0])[:-30])
    expect(error).to_contain_text("can't be decoded")
    choose(page, bytes(MAX_BYTES + 1))
    expect(error).to_contain_text("0.095 MiB")
    expect(error).to_be_in_viewport()
    choose(page, encode(pixels[0]))
    expect(page.locator("#class-name")).to_contain_text("row")
    expect(error).to_be_hidden()


def test_a_server_that_has_stopped(open_page, model, pixels, encode) -> None:
    with running(create_app(model)) as url:
        page = open_page(url)
        page.wait_for_selector("#work:not([hidden])")
    choose(page, encode(pixels[0]))
    expect(page.locator("#error")).to_contain_text("can't be reached")


def test_the_token_is_requested(open_page, model, pixels, encode) -> None:
    with running(create_app(model, ServerConfig(token="it-is-ours"))) as url:
        page = open_page(url)
        expect(page.locator("#login")).to_be_visible()
        expect(page.locator("#work")).to_be_hidden()
        expect(page.locator("#error")).to_be_hidden()
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        expect(page.locator("#error")).to_contain_text("token is wrong")
        page.fill("#token", "it-is-ours")
        page.press("#token", "Enter")
        expect(page.locator("#login")).to_be_hidden()
        expect(page.locator("#error")).to_be_hidden()
        choose(page, encode(pixels[0]))
        expect(page.locator("#class-name")).to_contain_text("row")


def test_a_model_without_thresholds_or_dirichlet(open_page, pixels, encode) -> None:
    torch.manual_seed(0)
    names = [f"<b>class</b> number {i}" for i in range(12)]
    model = daedl.Classifier(ConvNet(1, 12, 8, channels=4), "softmax", names)
    with running(create_app(model)) as url:
        page = open_page(url)
        choose(page, encode(pixels[0]))
        expect(page.locator("#decision")).to_have_text("Not calibrated")
        expect(page.locator("#thresholds")).to_contain_text("isn't calibrated")
        expect(page.locator("#density")).to_be_hidden()
        expect(page.locator("#alpha0")).to_be_hidden()
        expect(page.locator("#bars li")).to_have_count(10)
        page.click("text=All 12 classes")
        expect(page.locator("#bars li")).to_have_count(12)
        assert set(page.locator("#bars .name").all_inner_texts()) == set(names)


def test_a_model_without_image_inputs(open_page) -> None:
    with running(create_app(daedl.Classifier(MLP(4, 3), "edl"))) as url:
        page = open_page(url)
        expect(page.locator("#error")).to_contain_text("inputs of shape (4)")
        expect(page.locator("#work")).to_be_hidden()


def test_tabs_by_keyboard(open_page, url) -> None:
    page = open_page(url)
    expect(page.locator("#work")).to_be_visible()  # hidden elements can't be focused
    page.focus("#tab-file")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#panel-draw")).to_be_visible()
    expect(page.locator("#tab-draw")).to_be_focused()
    expect(page.locator("#tab-draw")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#panel-file")).to_be_visible()


@pytest.fixture(scope="module")
def text_url(tmp_path_factory) -> Iterator[str]:
    pytest.importorskip("transformers")
    folder = write_encoder(tmp_path_factory.mktemp("encoder"))
    torch.manual_seed(0)
    model = daedl.Classifier.from_backbone(f"text:{folder}", class_names=["money", "music"])
    texts = ["pay the bill", "jazz band", "bank card", "play a song"] * 8
    daedl.fit(model, (texts, torch.tensor([0, 1, 0, 1] * 8)), max_epochs=2, progress=False)
    with running(create_app(model)) as url:
        yield url


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_a_text_is_written_and_predicted(open_page, text_url):
    page = open_page(text_url)
    page.wait_for_selector("#work:not([hidden])")
    expect(page.locator("#tabs")).to_be_hidden()
    expect(page.locator("#about")).to_contain_text("Write a text")
    page.fill("#text", "pay the card bill")
    page.click("#panel-text button")
    expect(page.locator("#class-name")).to_contain_text("m")
    expect(page.locator("#density")).to_be_visible()
    expect(page.locator("#input")).to_be_hidden()
    page.fill("#text", "   ")
    page.press("#text", "Control+Enter")
    expect(page.locator("#error")).to_contain_text("empty")

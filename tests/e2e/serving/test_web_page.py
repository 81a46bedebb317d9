"""The page in a real browser: a file, a drawing, errors, a token; nothing comes from elsewhere."""

import shutil
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

import daedl
from daedl.networks import MLP, ConvNet
from daedl.serving import Settings, create_app

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
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
MAX_BYTES = 100_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(model, running) -> Iterator[str]:
    with running(create_app(model, Settings(max_bytes=MAX_BYTES))) as address:
        yield address


@pytest.fixture
def opened(browser) -> Iterator[Opened]:
    """Opens the page: `opened(address, viewport)`; its errors and requests to elsewhere fail the test."""
    contexts, wrong = [], []

    def open_page(address: str, viewport: dict = DESK) -> Page:
        context = browser.new_context(viewport=viewport)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))

        def told(message: ConsoleMessage) -> None:
            # What the server refuses is told on the page, and by the browser too.
            if message.type == "error" and "Failed to load" not in message.text:
                wrong.append(message.text)

        def check(request: Request) -> None:
            if not request.url.startswith((address, "blob:", "data:")):
                wrong.append(request.url)

        page.on("console", told)
        page.on("request", check)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def choose(page: Page, data: bytes, name: str = "a.png", kind: str = "image/png") -> None:
    page.wait_for_selector("#work:not([hidden])")
    page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": data})


def drag(page: Page, *points: tuple[float, float]) -> None:
    """Draw a stroke through points, as shares of the drawing area's sides."""
    box = page.locator("#pad").bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=5)
    page.mouse.up()


def width(track: Locator) -> float:
    """How much of a track is filled."""
    return float(track.locator(".fill").evaluate("each => parseFloat(each.style.width)"))


@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_a_file_is_answered(opened, address, model, pixels, png, viewport) -> None:
    page = opened(address, viewport)
    expect(page.locator("#facts")).to_have_text(
        "ConvNet with daedl, 3 classes; 8 × 8 pixels, grey."
    )
    choose(page, png(pixels[1]))
    p = model.predict(pixels[1:2] / 255)
    assert p.accept.all()
    expect(page.locator("#label")).to_have_text(f"column{100 * float(p.probs.max()):.1f} %")
    expect(page.locator("#decision")).to_have_text("Accepted")
    expect(page.locator("#why")).to_contain_text(
        "close enough to the training data, and classes are told apart well enough"
    )
    expect(page.locator("#density-value")).to_have_text(f"{float(p.density_score):.2f}")
    assert width(page.locator("#density-track")) == pytest.approx(
        100 * float(p.density_score), abs=0.1
    )
    alpha0 = float(page.locator("#evidence-value").inner_text().replace(",", ""))
    assert alpha0 == pytest.approx(float(p.alpha.sum()), rel=0.01)
    names = page.locator("#bars .name").all_inner_texts()
    assert names == model.class_names
    tracks = page.locator("#bars .track").all()
    for track, share in zip(tracks, p.probs[0].tolist(), strict=True):
        assert width(track) == pytest.approx(100 * share, abs=0.1)
    expect(page.locator("#preview")).to_be_visible()
    expect(page.locator("#thresholds")).to_contain_text("at most 10.00% are rejected")
    # Nothing sticks out to the side.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_dropped_file_is_answered_and_why_it_is_handed_over(opened, address, png) -> None:
    page = opened(address)
    page.wait_for_selector("#work:not([hidden])")
    page.click("#tab-draw")
    noise = np.random.default_rng(3).integers(0, 256, (8, 8)).astype(np.uint8)
    transfer = page.evaluate_handle(
        """bytes => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "n.png", { type: "image/png" }));
            return transfer;
        }""",
        list(png(noise)),
    )
    page.dispatch_event("body", "drop", {"dataTransfer": transfer})
    expect(page.locator("#decision")).to_have_text("Handed over to a person")
    expect(page.locator("#why")).to_have_text("Unlike the training data.")
    expect(page.locator("#density-words")).to_contain_text("Unlike anything")
    expect(page.locator("#panel-file")).to_be_visible()


def seen(page: Page) -> np.ndarray:
    """The image that is shown as what the model sees (8, 8), once it is drawn."""
    script = "e => [...e.getContext('2d').getImageData(0, 0, 8, 8).data]"
    return np.reshape(page.locator("#seen").evaluate(script), (8, 8, 4))[..., 0]


def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Wait; the page's policy forbids playwright's own way, which evaluates text."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_drawing_is_answered_and_cleared(opened, address) -> None:
    page = opened(address, PHONE)
    page.click("#tab-draw")
    page.uncheck("#centre")
    drag(page, (0.44, 0.03), (0.44, 0.97))
    expect(page.locator("#label")).to_contain_text("column")
    page.click("#clear")
    expect(page.locator("#result")).to_be_hidden()
    drag(page, (0.03, 0.44), (0.97, 0.44))
    expect(page.locator("#label")).to_contain_text("row")
    assert seen(page)[0].max() < 50
    assert seen(page)[3].min() > 100
    page.check("#dark")  # the same drawing, the other way round
    until(lambda: seen(page)[0].min() > 200)
    assert seen(page)[3].max() < 150
    expect(page.locator("#decision")).to_have_text("Handed over to a person")


def test_a_drawing_is_centred(opened, address) -> None:
    page = opened(address)
    page.click("#tab-draw")
    drag(page, (0.1, 0.1), (0.1, 0.3))
    expect(page.locator("#result")).to_be_visible()
    assert set(seen(page).sum(0).argsort()[-2:]) == {3, 4}
    page.uncheck("#centre")
    until(lambda: seen(page).sum(0).argmax() == 0)
    assert seen(page)[5:].max() < 20


def test_errors_are_told_in_words_and_forgotten(opened, address, pixels, png) -> None:
    page = opened(address, PHONE)
    error = page.locator("#error")
    choose(page, b"no image at all")
    expect(error).to_have_text(
        "The image is neither PNG nor JPEG; expected one of them: convert it."
    )
    expect(page.locator("#result")).to_be_hidden()
    choose(page, b"GIF89a", "a.gif", "image/gif")
    expect(error).to_contain_text("The Content-Type is 'image/gif'; expected image/png")
    choose(page, png(pixels[0])[:-30])
    expect(error).to_contain_text("can't be read")
    choose(page, bytes(MAX_BYTES + 1))
    expect(error).to_contain_text("the server takes up to 0.095 MiB: make it smaller")
    expect(error).to_be_in_viewport()
    choose(page, png(pixels[0]))
    expect(page.locator("#label")).to_contain_text("row")
    expect(error).to_be_hidden()


def test_a_server_that_is_gone(opened, model, running, pixels, png) -> None:
    with running(create_app(model)) as address:
        page = opened(address)
        page.wait_for_selector("#work:not([hidden])")
    choose(page, png(pixels[0]))
    expect(page.locator("#error")).to_have_text("The server can't be reached. Is it still running?")


def test_who_has_no_token_is_asked_for_it(opened, model, running, pixels, png) -> None:
    with running(create_app(model, Settings(token="it-is-ours"))) as address:
        page = opened(address)
        expect(page.locator("#entrance")).to_be_visible()
        expect(page.locator("#work")).to_be_hidden()
        expect(page.locator("#error")).to_be_hidden()
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        expect(page.locator("#error")).to_have_text("The server doesn't know this token.")
        page.fill("#token", "it-is-ours")
        page.press("#token", "Enter")
        expect(page.locator("#entrance")).to_be_hidden()
        expect(page.locator("#error")).to_be_hidden()
        choose(page, png(pixels[0]))
        expect(page.locator("#label")).to_contain_text("row")


def test_a_model_without_thresholds_or_evidence(opened, running, pixels, png) -> None:
    torch.manual_seed(0)
    names = [f"<b>class</b> number {i}" for i in range(12)]
    model = daedl.Classifier(ConvNet(1, 12, 8, channels=4), "softmax", names)
    with running(create_app(model)) as address:
        page = opened(address)
        choose(page, png(pixels[0]))
        expect(page.locator("#decision")).to_have_text("Not calibrated")
        expect(page.locator("#thresholds")).to_contain_text("isn't calibrated")
        expect(page.locator("#density")).to_be_hidden()
        expect(page.locator("#evidence")).to_be_hidden()
        expect(page.locator("#bars li")).to_have_count(10)
        page.click("text=All 12 classes")
        expect(page.locator("#bars li")).to_have_count(12)
        assert set(page.locator("#bars .name").all_inner_texts()) == set(names)


def test_a_model_that_takes_no_images(opened, running) -> None:
    with running(create_app(daedl.Classifier(MLP(4, 3), "edl"))) as address:
        page = opened(address)
        expect(page.locator("#error")).to_contain_text("takes arrays of shape (4), no images")
        expect(page.locator("#work")).to_be_hidden()


def test_tabs_by_keyboard(opened, address) -> None:
    page = opened(address)
    expect(page.locator("#work")).to_be_visible()  # what is hidden can't be focused
    page.focus("#tab-file")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#panel-draw")).to_be_visible()
    expect(page.locator("#tab-draw")).to_be_focused()
    expect(page.locator("#tab-draw")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#panel-file")).to_be_visible()

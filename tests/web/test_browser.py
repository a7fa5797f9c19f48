"""The pages in a real browser, by what a person does and sees."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from ballsbins import BallsAndBins, Mechanism, Poisson, calibrate
from ballsbins.report.numbers import up
from ballsbins.web.page import page_of_mechanism
from ballsbins.web.question import DEFAULTS

from .conftest import serving

pytestmark = pytest.mark.slow

READY = "html[data-state=ready]"


def epsilon(page):
    return page.locator("#headline output").inner_text()


def settled(page):
    """Wait until the last question is answered whole."""
    page.wait_for_selector(READY, state="attached")


def expected(sigma, steps, delta=1e-6, **more):
    return up(Mechanism(BallsAndBins(steps, **more), sigma).epsilon(delta).upper, 5)


def test_a_slider_moves_the_number_to_the_python_answer(server, browse):
    page = browse(server)
    assert epsilon(page) == expected(0.6, 235)
    page.focus("#noise-multiplier-slider")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(50)
    settled(page)
    sigma = page.input_value("#noise-multiplier")
    assert float(sigma) > 0.6
    assert epsilon(page) == expected(float(sigma), 235)
    assert page.get_attribute("#noise-multiplier-slider", "aria-valuetext") == sigma
    poisson = Mechanism(Poisson(235), float(sigma)).epsilon(1e-6)
    assert up(float(poisson.upper)) in page.inner_text("#row-poisson")
    # the address holds the question: another browser that opens it sees the same
    assert parse_qs(urlsplit(page.url).query)["noise-multiplier"] == [sigma]
    other = browse(page.url)
    assert epsilon(other) == epsilon(page)
    assert other.input_value("#noise-multiplier") == sigma


def test_fields_choices_and_the_noise_for_a_target(server, browse):
    address = (
        f"{server}?{urlencode({'noise-multiplier': '1', 'steps': '50', 'delta': '1e-5', 'epsilon': '3'})}"
    )
    page = browse(address)
    assert page.is_hidden("#batch-size")
    assert epsilon(page) == expected(1.0, 50, 1e-5)
    target = calibrate(BallsAndBins(50), epsilon=3.0, delta=1e-5)
    assert page.locator("#calibration output").inner_text() == up(target.noise_multiplier, 5)
    page.click("#use")
    settled(page)
    assert page.input_value("#noise-multiplier") == up(target.noise_multiplier, 5)
    assert 2.99 < float(epsilon(page)) <= 3.0
    page.fill("#epochs", "4")
    page.check("input[name=fixed-bins][value='1']", force=True)
    page.wait_for_selector("#row-balls-and-bins:has-text('fixed bins')")
    settled(page)
    fixed = Mechanism(BallsAndBins(50, redraw=False), float(up(target.noise_multiplier, 5)), 4)
    assert epsilon(page) == up(fixed.epsilon(1e-5).upper, 5)
    # everything that can be changed has a name
    assert page.evaluate("[...document.querySelectorAll('input')].every(i => i.labels.length || i.ariaLabel)")


def test_bad_values_are_explained_beside_their_field(server, browse):
    page = browse(server)
    with pytest.raises(ValueError) as error:
        Mechanism(BallsAndBins(235), 0.0)
    page.fill("#noise-multiplier", "0")
    page.wait_for_selector("html[data-state=error]", state="attached")
    assert page.inner_text("#noise-multiplier-error") == str(error.value)
    assert page.get_attribute("#noise-multiplier", "aria-invalid") == "true"
    assert "stale" in page.get_attribute("#headline", "class")  # the old number is no answer to this
    page.fill("#noise-multiplier", "0.6")
    settled(page)
    assert page.inner_text("#noise-multiplier-error") == ""
    assert page.get_attribute("#noise-multiplier", "aria-invalid") is None
    # what only the accountant finds out: too small a largest batch
    page.check("#truncate")
    page.fill("#max-batch-size", "260")
    page.wait_for_selector("#max-batch-size-error:not(:empty)")
    settled(page)
    assert "or more, or a larger delta" in page.inner_text("#max-batch-size-error")
    assert page.inner_text("#headline") == "no answer"
    assert page.is_disabled("#copy-text")
    browse.troubles[:] = [t for t in browse.troubles if "422" not in t]  # the browser logs the refusal


def test_an_address_from_a_stranger(server, browse):
    """What it leaves out has the usual value, what it should not have is text beside its field and nothing else."""
    page = browse(f"{server}?delta=1e-5")
    assert page.input_value("#examples") == DEFAULTS["examples"]
    assert epsilon(page) == expected(0.6, 235, 1e-5)
    for name, text in (
        ("noise-multiplier", "<img src=x onerror=document.title='owned'>"),
        ("epochs", '"><script>document.title="owned"</script>'),
        ("delta", "NaN"),
        ("examples", "9" * 39),
    ):
        page.goto(f"{server}?{urlencode({**DEFAULTS, name: text})}")
        page.wait_for_selector("html[data-state=error]", state="attached")
        assert page.input_value(f"#{name}") == text
        assert "but must be" in page.inner_text(
            "#batch-size-error" if name == "examples" else f"#{name}-error"
        )
        assert page.is_hidden("#problem")
        assert page.title() != "owned"
        assert page.locator("#knobs img, #results img, #knobs script, #results script").count() == 0
    page.goto(server)
    settled(page)
    page.fill("#batch-size", "")
    page.wait_for_selector("#batch-size-error:not(:empty)")
    assert "Give --steps, or --examples with --batch-size" in page.inner_text("#batch-size-error")
    browse.troubles[:] = [t for t in browse.troubles if "422" not in t]  # the browser logs the refusals


def test_what_takes_longer_is_seen_to_be_under_way(server, browse):
    page = browse(server)
    page.fill("#epochs", "23")
    page.wait_for_selector("#busy.on")
    page.wait_for_selector("#headline:not(.stale) output")
    assert "stale" in page.get_attribute(
        "#statement", "class"
    )  # an old statement must not look like the new one
    assert page.is_disabled("#copy-text")
    settled(page)
    assert page.locator(".stale").count() == 0
    assert page.locator("#busy.on").count() == 0
    assert epsilon(page) == up(Mechanism(BallsAndBins(235), 0.6, 23).epsilon(1e-6).upper, 5)


def test_curves_and_statement(server, browse):
    page = browse(server)
    curves = page.evaluate("chart.shown.map(c => [c.name, c.epsilon.length, c.upper[5]])")
    assert [name for name, _, _ in curves] == ["balls-and-bins", "Poisson", "shuffle", "deterministic"]
    assert drawn(page)
    far = page.evaluate("chart.range[1]")
    page.check("input[name=range][value=close]", force=True)
    assert page.evaluate("chart.range[1]") < far
    statement = Mechanism(BallsAndBins(235), 0.6).statement(1e-6, num_examples=60000)
    assert statement.headline in page.inner_text("#statement")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#copy-markdown")
    page.wait_for_selector("#copy-markdown:text('Copied')")
    copied, ours = page.evaluate("navigator.clipboard.readText()"), statement.markdown()
    before = ours.index("**Software")  # what else has been imported here is not what the server has
    assert len(copied) > before
    assert copied[:before] == ours[:before]


def drawn(page):
    """Whether the picture has pixels of the first line's colour; canvases are within shadow roots."""
    return page.evaluate(
        """() => {
          const canvases = [];
          const walk = (node) => {
            if (node.tagName === "CANVAS") canvases.push(node);
            for (const child of [...(node.shadowRoot?.children ?? []), ...node.children]) walk(child);
          };
          walk(document.getElementById("chart"));
          const wanted = getComputedStyle(document.documentElement).getPropertyValue("--ink-0").trim();
          const [r, g, b] = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
          return canvases.some((canvas) => {
            if (!canvas.width || !canvas.height) return false;
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            let count = 0; // more than a dot has
            for (let i = 0; i < data.length; i += 4) {
              count += Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12;
            }
            return count > 200;
          });
        }"""
    )


def test_the_exported_file_opens_from_disk_and_asks_nobody(server, browse, tmp_path):
    page = browse(server)
    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "privacy.html"
    alone = browse(file.as_uri(), ready="[data-ready=yes]")
    assert alone.locator(".headline output").inner_text() == expected(0.6, 235)
    assert alone.evaluate("chart.shown.length") == 4
    assert drawn(alone)
    assert alone.asked == [file.as_uri()]
    alone.context.grant_permissions(["clipboard-read", "clipboard-write"])
    alone.click("[data-copy=text]")
    alone.wait_for_selector("[data-copy=text]:text('Copied')")


def test_a_page_without_protection_and_on_paper(browse, tmp_path):
    """Where there is no ε to draw up to, the axis is still one that can be read; on paper, text is dark."""
    file = tmp_path / "page.html"
    file.write_text(page_of_mechanism(Mechanism(BallsAndBins(100), 0.01), 1e-6, "No noise", alone=True))
    page = browse(file.as_uri(), scheme="dark", ready="[data-ready=yes]")
    assert page.evaluate("chart.range") == [0, 60]
    light = "parseInt(getComputedStyle(document.body).color.match(/\\d+/)[0])"
    assert page.evaluate(light) > 200
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(light) < 60


@pytest.mark.parametrize("width", [1280, 380])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(server, browse, width, scheme, tmp_path):
    page = browse(server, width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert drawn(page)
    assert page.evaluate(CONTRAST) >= 4.5
    # to be looked at: set BALLSBINS_SCREENSHOTS to a directory
    pictures = Path(os.environ.get("BALLSBINS_SCREENSHOTS", tmp_path))
    page.screenshot(path=pictures / f"explorer-{width}-{scheme}.png", full_page=True)
    # fields are reached with the keyboard alone, in the order in which they stand
    page.locator("#noise-multiplier").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "noise-multiplier-slider"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "examples"


# the least contrast (WCAG) of texts against the card that they stand on
CONTRAST = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const card = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
  const texts = document.querySelectorAll("label, .hint, .method, .given, .run, .note, dd, dt, h2, h3, output");
  return Math.min(...[...texts].map((text) => ratio(light(getComputedStyle(text).color), card)));
}"""


def test_two_browsers_at_once_and_a_server_that_goes(browse):
    with serving() as (process, address):
        first = browse(address)
        second = browse(f"{address}?{urlencode({**DEFAULTS, 'noise-multiplier': '0.9'})}")
        first.fill("#noise-multiplier", "0.8")
        second.fill("#noise-multiplier", "0.85")
        for page, sigma in ((first, 0.8), (second, 0.85)):
            settled(page)
            assert epsilon(page) == expected(sigma, 235)
        process.terminate()
        process.wait(30)
        first.fill("#noise-multiplier", "0.7")
        first.wait_for_selector("#problem:not([hidden])")
        assert "Is `ballsbins serve` still running?" in first.inner_text("#problem")
    browse.troubles[:] = [t for t in browse.troubles if "ERR_CONNECTION" not in t]

"""The pages in a real browser, by what a person does and sees."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from ballsbins import BallsAndBins, Deterministic, Mechanism, Poisson, Shuffle, calibrate
from ballsbins.report.numbers import down, up
from ballsbins.web.page import page_of_mechanism
from ballsbins.web.question import DEFAULTS, PRESETS

from .conftest import serving

pytestmark = pytest.mark.slow

READY = "html[data-state=ready]"
# a run that is answered at once: one epoch of 235 steps
RUN = {
    "sampler": "balls-and-bins",
    "noise-multiplier": "0.6",
    "examples": "60000",
    "batch-size": "256",
    "epochs": "1",
    "delta": "1e-6",
    "epsilon": "2",
}


def asking(server, **fields):
    """The address of that run, with other fields."""
    return f"{server}?{urlencode(RUN | {name.replace('_', '-'): text for name, text in fields.items()})}"


def epsilon(page):
    return page.locator("#headline output").inner_text()


def settled(page):
    """Wait until the last question is answered whole."""
    page.wait_for_selector(READY, state="attached")


def change(page, act):
    """Do something that asks anew, and wait until that is answered whole."""
    page.evaluate("document.documentElement.dataset.state = 'old'")
    act()
    settled(page)


def expected(sigma, steps, delta=1e-6, **more):
    return up(Mechanism(BallsAndBins(steps, **more), sigma).epsilon(delta).upper, 4)


def forgive(browse, word="422"):
    """The browser itself logs what a server refuses."""
    browse.troubles[:] = [trouble for trouble in browse.troubles if word not in trouble]


def test_an_empty_page_asks_first_how_batches_are_drawn_and_shows_claim_against_truth(server, browse):
    page = browse(server)
    assert page.locator("#knobs :is(input, select)").first.get_attribute("name") == "sampler"
    assert page.is_checked("input[name=sampler][value=shuffle]")
    run = Mechanism(Shuffle(938), 1.0, 10)
    claim, truth = run.under(Poisson).epsilon(1e-5), run.epsilon(1e-5)
    assert epsilon(page) == up(truth.upper, 4)
    assert f"at least {down(truth.lower, 4)}" in page.inner_text("#headline")
    words = page.inner_text("#picture")
    assert f"A report of ε ≤ {up(claim.upper, 4)} would be false." in words
    assert f"Shuffled batches have at least {down(truth.lower, 4)}: 9.2 times as much." in words
    # the picture is above everything else, whole in the first screen, and its bars are as long as the numbers
    box = page.locator("#picture .bars").bounding_box()
    assert box["y"] + box["height"] < 500
    widths = "[...bar.querySelectorAll('rect')].slice(1).map((rect) => rect.width.baseVal.value)"
    rects = f"[...document.querySelectorAll('#picture .bar')].map((bar) => {widths})"
    (claimed, _), (most, least), _ = page.evaluate(rects)
    assert most == pytest.approx(100)
    assert least == pytest.approx(100 * truth.lower / truth.upper, abs=0.01)
    assert claimed == pytest.approx(100 * claim.upper / truth.upper, abs=0.01)
    assert "shuffle" in page.inner_text("#statement").lower()
    assert "--sampler shuffle" in page.inner_text("#command")


def test_headline_and_statement_follow_how_batches_are_drawn(server, browse):
    page = browse(asking(server))
    for value, sampler, words in (
        ("poisson", Poisson, "With Poisson batches"),
        ("shuffle", Shuffle, "With shuffled batches"),
        ("deterministic", Deterministic, "With the same batches every epoch"),
    ):
        change(page, lambda value=value: page.check(f"input[name=sampler][value={value}]"))
        run = Mechanism(sampler(235), 0.6)
        assert words in page.inner_text("#headline")
        assert epsilon(page) == up(run.epsilon(1e-6).upper, 4)
        assert run.statement(1e-6, num_examples=60000).headline in page.inner_text("#statement")
        assert parse_qs(urlsplit(page.url).query)["sampler"] == [value]
        # what these batches cannot have is not asked
        assert page.is_hidden("#bins")
        assert page.is_hidden("#limit") is (value != "poisson")
    change(page, lambda: page.check("input[name=sampler][value=unknown]"))
    bins, poisson, fixed = (
        Mechanism(kind(235), 0.6).epsilon(1e-6) for kind in (BallsAndBins, Poisson, Deterministic)
    )
    assert epsilon(page) == f"{down(min(bins.lower, poisson.lower), 4)} … {up(fixed.upper, 4)}"
    assert page.inner_text("#statement") == "There is nothing to state."
    assert page.is_disabled("#copy-text")
    assert "ballsbins compare" in page.inner_text("#command")
    assert all(
        name in page.inner_text(".samplers")
        for name in ("balls-and-bins", "Poisson", "shuffle", "deterministic")
    )


def test_a_slider_moves_the_number_to_the_python_answer(server, browse):
    page = browse(asking(server))
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
    assert up(float(poisson.upper), 4) in page.inner_text("#row-poisson")
    # the address holds the question: another browser that opens it sees the same
    assert parse_qs(urlsplit(page.url).query)["noise-multiplier"] == [sigma]
    other = browse(page.url)
    assert epsilon(other) == epsilon(page)
    assert other.input_value("#noise-multiplier") == sigma


def test_fields_choices_and_the_noise_for_a_target(server, browse):
    fields = {"noise-multiplier": "1", "steps": "50", "delta": "1e-5", "epsilon": "3"}
    page = browse(f"{server}?{urlencode({'sampler': 'balls-and-bins', **fields, 'epochs': '1'})}")
    assert page.is_hidden("#batch-size")
    assert epsilon(page) == expected(1.0, 50, 1e-5)
    target = calibrate(BallsAndBins(50), epsilon=3.0, delta=1e-5)
    assert page.locator("#calibration output").inner_text() == up(target.noise_multiplier, 5)
    change(page, lambda: page.click("#use"))
    assert page.input_value("#noise-multiplier") == up(target.noise_multiplier, 5)
    assert 2.99 < float(epsilon(page)) <= 3.0
    page.fill("#epochs", "4")
    page.check("input[name=fixed-bins][value='1']", force=True)
    page.wait_for_selector("#row-balls-and-bins:has-text('fixed bins')")
    settled(page)
    fixed = Mechanism(BallsAndBins(50, redraw=False), float(up(target.noise_multiplier, 5)), 4)
    assert epsilon(page) == up(fixed.epsilon(1e-5).upper, 4)
    # everything that can be changed has a name
    assert page.evaluate(
        "[...document.querySelectorAll('input, select')].every(i => i.labels.length || i.ariaLabel)"
    )


def test_presets_fill_the_fields(server, browse):
    page = browse(asking(server))
    (name, fields) = list(PRESETS.items())[2]
    change(page, lambda: page.select_option("#preset", name))
    assert {field: page.input_value(f"#{field}") for field in fields} == dict(fields)
    assert page.is_checked("input[name=sampler][value=balls-and-bins]")  # that is not for a preset to say
    assert epsilon(page) == expected(0.4, 4517, 1e-8)
    page.fill("#epochs", "2")
    assert page.input_value("#preset") == ""


def test_bad_values_are_explained_beside_their_field_in_its_own_words(server, browse):
    page = browse(asking(server))
    page.fill("#noise-multiplier", "0")
    page.wait_for_selector("html[data-state=error]", state="attached")
    words = page.inner_text("#noise-multiplier-error")
    assert words.startswith("Noise multiplier σ is 0.0, but must be a number")
    assert "noise_multiplier" not in words
    assert "--" not in words
    assert page.get_attribute("#noise-multiplier", "aria-invalid") == "true"
    page.fill("#noise-multiplier", "0.6")
    settled(page)
    assert page.inner_text("#noise-multiplier-error") == ""
    assert page.get_attribute("#noise-multiplier", "aria-invalid") is None
    # what only the accountant finds out: too small a largest batch
    page.check("#truncate")
    page.fill("#max-batch-size", "260")
    page.wait_for_selector("#max-batch-size-error:not(:empty)")
    settled(page)
    words = page.inner_text("#max-batch-size-error")
    assert "Largest batch = " in words
    assert "or more, or a larger δ" in words
    assert page.inner_text("#headline").startswith("no answer")
    assert page.is_disabled("#copy-text")
    page.fill("#batch-size", "")
    page.wait_for_selector("#batch-size-error:not(:empty)")
    assert "Give Steps per epoch, or Examples n with Batch size" in page.inner_text("#batch-size-error")
    forgive(browse)


def test_nothing_of_an_earlier_question_is_left_as_if_it_were_the_answer(server, browse):
    page = browse(asking(server))
    assert "If you shuffled instead" in page.inner_text("#picture")
    # the accountant refuses: the sentence, the statement and the curve of the run before must go
    page.check("#truncate")
    page.fill("#max-batch-size", "260")
    page.wait_for_selector("#max-batch-size-error:not(:empty)")
    settled(page)
    assert page.inner_text("#picture") == ""
    assert page.inner_text("#brief") == ""
    assert page.inner_text("#statement") == "There is nothing to state."
    assert page.evaluate("chart.shown.map((curve) => curve.name)") == ["shuffle", "deterministic"]
    assert page.locator(".stale").count() == 0
    # the server refuses: what is still to be seen says that it is old
    change(page, lambda: page.uncheck("#truncate"))
    page.fill("#delta", "7")
    page.wait_for_selector("html[data-state=error]", state="attached")
    for place in ("headline", "picture", "statement", "chart", "calibration", "row-poisson"):
        assert "stale" in page.get_attribute(f"#{place}", "class"), place
    assert "What is faded answers an earlier question." in page.inner_text("#problem")
    assert page.inner_text("#command") == ""
    assert page.is_disabled("#use")
    change(page, lambda: page.fill("#delta", "1e-6"))
    assert page.locator(".stale").count() == 0
    assert page.is_hidden("#problem")
    # a target that is taken away takes its noise with it
    change(page, lambda: page.fill("#epsilon", ""))
    assert page.inner_text("#calibration") == "State a target ε to have σ found."
    assert page.is_disabled("#use")
    forgive(browse)


def test_the_limit_that_the_page_suggests_is_one_that_it_accepts(server, browse):
    page = browse(asking(server, epochs="40", noise_multiplier="0.5"))
    change(page, lambda: page.check("#truncate"))
    assert page.input_value("#max-batch-size") == "auto"
    assert page.inner_text("#max-batch-size-error") == ""
    assert float(epsilon(page)) > 0
    assert "batches of at most " in page.inner_text("#chosen-limit")


def test_a_number_stays_when_its_curve_takes_too_long_and_no_field_is_blamed(server, browse):
    page = browse(asking(server))

    def without_curves(route):
        """The server's own answer, as it is when the curves are not finished in their time."""
        answer = route.fetch()
        events = [json.loads(line) for line in answer.text().splitlines()]
        late = {
            "kind": "no-curve",
            "part": "balls-and-bins",
            "message": "No curve of balls-and-bins: too long.",
        }
        lines = [json.dumps(late if event["kind"] == "curve" else event) for event in events]
        route.fulfill(response=answer, body="\n".join(lines) + "\n")

    page.route("**/answer?*", without_curves)
    change(page, lambda: page.fill("#noise-multiplier", "0.7"))
    assert epsilon(page) == expected(0.7, 235)
    assert page.inner_text("#no-curve") == "No curve of balls-and-bins: too long."
    assert page.locator("[aria-invalid=true]").count() == 0
    assert "If you shuffled instead" in page.inner_text("#picture")
    assert "≤" in page.inner_text("#row-poisson")
    assert page.evaluate("chart.shown.length") == 0  # the curves of the run before are gone
    page.unroute("**/answer?*")
    change(page, lambda: page.fill("#noise-multiplier", "0.6"))
    assert page.inner_text("#no-curve") == ""
    assert page.evaluate("chart.shown.length") == 4


def test_a_delta_of_one_over_n_is_said_loudly(server, browse):
    page = browse(asking(server, delta="1e-4"))
    assert "not below 1/n" in page.inner_text("#warning")
    change(page, lambda: page.fill("#delta", "1e-5"))
    assert page.is_hidden("#warning")


def test_explanations_on_demand(server, browse):
    page = browse(asking(server))
    assert page.locator("details[open]").count() == 0
    page.check("#truncate")
    said = " ".join(page.evaluate("[...document.querySelectorAll('.why p')].map((p) => p.textContent)"))
    for word in ("e", "one over the number of examples", "Redrawn", "Fixed", "fixed memory", "Opacus"):
        assert word.lower() in said.lower()
    page.click("summary:has-text('What is the difference?')")
    assert page.locator("svg.ways-drawing").bounding_box()["height"] > 80
    page.click("summary[aria-label='What is δ?']")
    assert page.is_visible("text=with δ = 1/n one could publish")


def test_an_address_from_a_stranger(server, browse):
    """What it leaves out has the usual value, what it should not have is text beside its field and nothing else."""
    page = browse(f"{server}?sampler=balls-and-bins&epochs=1&delta=1e-6")
    assert page.input_value("#examples") == DEFAULTS["examples"]
    assert epsilon(page) == expected(1.0, 938)
    for name, text in (
        ("noise-multiplier", "<img src=x onerror=document.title='owned'>"),
        ("epochs", '"><script>document.title="owned"</script>'),
        ("delta", "NaN"),
        ("examples", "9" * 39),
    ):
        page.goto(asking(server, **{name: text}))
        page.wait_for_selector("html[data-state=error]", state="attached")
        assert page.input_value(f"#{name}") == text
        assert "but must be" in page.inner_text(
            "#batch-size-error" if name == "examples" else f"#{name}-error"
        )
        assert page.title() != "owned"
        assert page.locator("#knobs img, #results img, #knobs script, #results script").count() == 0
    page.goto(f"{server}?sampler=nobody")
    settled(page)  # a way that there is none of is not asked about: the page has its own
    assert page.is_checked("input[name=sampler][value=shuffle]")
    forgive(browse)


def test_what_takes_longer_is_seen_to_be_under_way(server, browse):
    page = browse(asking(server))
    page.fill("#epochs", "23")
    page.wait_for_selector("#busy.on")
    page.wait_for_selector("#headline:not(.stale) output")
    if "stale" in (page.get_attribute("#statement", "class") or ""):  # unless it was quicker than we look
        assert page.is_disabled("#copy-text")  # an old statement must not look like the new one
    settled(page)
    assert page.locator(".stale").count() == 0
    assert page.locator("#busy.on").count() == 0
    assert epsilon(page) == up(Mechanism(BallsAndBins(235), 0.6, 23).epsilon(1e-6).upper, 4)


def test_curves_are_labelled_where_they_end(server, browse):
    page = browse(asking(server))
    names = ["balls-and-bins", "Poisson", "shuffle", "deterministic"]
    assert page.evaluate("chart.shown.map((curve) => curve.name)") == names
    assert drawn(page)
    for wide in ("all", "close"):
        page.check(f"input[name=range][value={wide}]", force=True)
        sides = "['x', 'y', 'width', 'height'].map((side) => text.getBBox()[side])"
        texts = "[...document.querySelectorAll('#chart .names text')]"
        boxes = page.evaluate(f"{texts}.map((text) => [text.textContent, ...{sides}])")
        assert sorted(name for name, *_ in boxes) == sorted(names)
        width = page.evaluate("document.querySelector('#chart svg').clientWidth")
        for number, (name, x, y, w, h) in enumerate(boxes):
            assert x >= 0
            assert x + w <= width
            for other, x2, y2, w2, h2 in boxes[number + 1 :]:
                apart = x + w <= x2 or x2 + w2 <= x or y + 0.8 * h <= y2 or y2 + 0.8 * h2 <= y
                assert apart, (wide, name, other)
        if wide == "all":
            far = page.evaluate("chart.range[1]")
    assert page.evaluate("chart.range[1]") < far
    page.hover("#chart svg", position={"x": 200, "y": 100})
    assert "δ ≤" in page.text_content("#chart .hover")


def test_delta_can_be_dragged(server, browse):
    page = browse(asking(server))
    grip = page.locator("#chart .grip").bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y - 60, steps=6)
    page.mouse.up()
    settled(page)
    page.wait_for_timeout(100)
    settled(page)
    delta = float(page.input_value("#delta"))
    assert 1e-6 < delta < 1e-2
    assert epsilon(page) == expected(0.6, 235, delta)
    assert page.evaluate("chart.delta") == delta
    # and moved with the keyboard
    page.locator("#chart .handle").focus()
    change(page, lambda: page.keyboard.press("ArrowDown"))
    assert float(page.input_value("#delta")) < delta
    assert page.get_attribute("#chart .handle", "aria-valuetext") == f"δ = {page.input_value('#delta')}"


def test_the_statement_is_copied_as_it_is(server, browse):
    page = browse(asking(server))
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
    """Whether a curve is there to be seen: a long line, within the picture, in the colour of the first ink."""
    return page.evaluate(
        """() => {
          const line = document.querySelector("#chart .curve");
          const [box, frame] = [line, line.ownerSVGElement].map((element) => element.getBoundingClientRect());
          const wanted = getComputedStyle(document.documentElement).getPropertyValue("--ink-0").trim();
          const parts = [1, 3, 5].map((at) => parseInt(wanted.slice(at, at + 2), 16));
          return line.getTotalLength() > 100 && box.left >= frame.left - 1 && box.height > 50
            && getComputedStyle(line).stroke === `rgb(${parts.join(", ")})`;
        }"""
    )


def test_the_exported_file_opens_from_disk_and_asks_nobody(server, browse, tmp_path):
    page = browse(asking(server))
    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "privacy.html"
    alone = browse(file.as_uri(), ready="[data-ready=yes]")
    assert alone.locator(".headline output").inner_text() == expected(0.6, 235)
    assert "If you shuffled instead" in alone.inner_text(".picture")
    assert alone.evaluate("chart.shown.length") == 4
    alone.wait_for_selector("#chart .curve", state="attached")
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
    page.wait_for_selector("#chart .curve", state="attached")
    assert page.evaluate("chart.range") == [0, 60]
    light = "parseInt(getComputedStyle(document.body).color.match(/\\d+/)[0])"
    assert page.evaluate(light) > 200
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(light) < 60


@pytest.mark.parametrize("width", [1400, 900, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_can_be_read_and_the_curves_stay_in_sight(server, browse, width, scheme, tmp_path):
    page = browse(asking(server), width=width, scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert drawn(page)
    assert page.evaluate(CONTRAST) >= 4.5
    # to be looked at: set BALLSBINS_SCREENSHOTS to a directory
    pictures = Path(os.environ.get("BALLSBINS_SCREENSHOTS", tmp_path))
    page.screenshot(path=pictures / f"explorer-{width}-{scheme}.png", full_page=True)
    # while a knob is turned, the curves are to be seen
    for field in ("noise-multiplier", "epochs", "epsilon"):
        page.locator(f"#{field}-slider").scroll_into_view_if_needed()
        slider, curves = (page.locator(place).bounding_box() for place in (f"#{field}-slider", "#chart"))
        assert 0 <= slider["y"] <= 900
        assert curves["y"] >= -20
        assert curves["y"] + 0.8 * curves["height"] <= 900
        covered = curves["y"] < slider["y"] < curves["y"] + curves["height"] and width < 760
        assert not covered
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
  const texts = document.querySelectorAll(
    "label, legend, small, .hint, .method, .given, .run, .note, .message, .bar span:not(.yours), dd, dt, h2, output",
  );
  return Math.min(...[...texts].map((text) => ratio(light(getComputedStyle(text).color), card)));
}"""


def test_two_browsers_at_once_and_a_server_that_goes(browse):
    with serving() as (process, address):
        first = browse(asking(address))
        second = browse(asking(address, noise_multiplier="0.9"))
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
        assert "stale" in first.get_attribute("#headline", "class")
    forgive(browse, "ERR_CONNECTION")

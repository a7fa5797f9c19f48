"""Pictures: they show the numbers given, their names are readable, and the same numbers give the same file."""

from __future__ import annotations

import io
from itertools import combinations

import numpy as np
import pytest

from ballsbins import plots
from ballsbins.bound import Bound
from ballsbins.plots.lines import Line, label_lines
from ballsbins.plots.pictures import _backward, _forward
from ballsbins.plots.style import LOOKS, look, new_axes, new_panels, number, number_axis

GRID = np.linspace(0.0, 12.0, 50)


def made_up(rate, spread=1.0, confidence=1.0):
    """A curve δ(ε) = 0.5·e^{−rate·ε}, with bounds a factor away."""
    value = 0.5 * np.exp(-rate * GRID)
    return Bound("delta", value / spread, value, value * spread, "bounds", "bounds", confidence)


CURVES = {
    "balls-and-bins": made_up(2.5),
    "Poisson": made_up(2.3),
    "shuffle": made_up(1.0, 3.0),
    "deterministic": made_up(0.9),
}


def points(*values, spread=1.001):
    return [Bound("epsilon", v / spread, v, v * spread, "exact", "exact") for v in values]


def pictures():
    x = [0.5, 1.0, 2.0]
    near = {
        "balls-and-bins": points(9, 3, 0.5),
        "Poisson": points(10, 3.1, 0.52),
        "shuffle": points(12, 7, 4, spread=2),
    }
    sigma = [0.0, 1e-4, 1e-2, 0.1, 0.3, 0.5]
    auc = {
        name: (sigma, 0.79 - shift - 0.05 * np.array(sigma), [0.001] * 6)
        for name, shift in (("balls-and-bins", 0.0), ("Poisson", 0.003), ("shuffle", 0.0002))
    }
    bars = {
        "balls-and-bins": (
            np.array([1.0, 3.0, 5.0]),
            Bound("delta", *_three(), "sampled", "Monte Carlo", 0.999),
        )
    }
    return {
        "curves": lambda: plots.privacy_curves(GRID, CURVES, samples=bars, title="A title"),
        "noise": lambda: plots.epsilon_against_noise(x, near, title="A title"),
        "epochs": lambda: plots.epsilon_against_epochs([1, 4, 16], near),
        "batch": lambda: plots.noise_against_batch_size(
            [64, 256, 1024], {"balls-and-bins": [0.5, 0.6, 0.8], "deterministic, shuffle": [2.0, 2.0, 2.0]}
        ),
        "auc": lambda: plots.auc_against_noise(auc, title="A title"),
    }


def _three():
    value = 0.5 * np.exp(-2.5 * np.array([1.0, 3.0, 5.0]))
    return 0.8 * value, value, 1.3 * value


@pytest.mark.parametrize("name", list(pictures()))
def test_names_are_inside_and_apart(name):
    axes = pictures()[name]()
    axes.figure.draw_without_rendering()
    frame = axes.get_window_extent()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) >= 2
    for box in boxes:
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1
    for one, two in combinations(boxes, 2):
        assert not one.overlaps(two)


@pytest.mark.parametrize("name", list(pictures()))
def test_names_cover_no_line(name):
    axes = pictures()[name]()
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    for drawn in axes.lines:
        if len(drawn.get_xdata()) < 2 or drawn.get_linestyle() == "None":  # the ends of bars
            continue
        screen = axes.transData.transform(np.column_stack([drawn.get_xdata(), drawn.get_ydata()]))
        screen = screen[np.isfinite(screen).all(axis=1)]
        at = np.linspace(0, len(screen) - 1, 2000)
        path = np.column_stack([np.interp(at, np.arange(len(screen)), column) for column in screen.T])
        for box in boxes:
            covered = box.count_contains(path)
            assert covered == 0, (box, drawn)


def test_that_check_can_fail():
    """Names thrown at the ends of three close lines do overlap."""
    axes = new_axes(None, "x", "y")
    x = np.linspace(0, 1, 20)
    for k in range(3):
        axes.plot(x, x + 0.01 * k)
        axes.text(0.5, 0.5 + 0.01 * k, f"line {k}")
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert any(one.overlaps(two) for one, two in combinations(boxes, 2))


def test_crowded_lines_still_get_their_names_apart():
    axes = new_axes(None, "x", "y")
    x = np.linspace(0, 1, 20)
    lines = [Line(f"line {k}", x, x + 0.02 * k, "black") for k in range(5)]
    for line in lines:
        axes.plot(line.x, line.y)
    label_lines(axes, lines)
    boxes = [text.get_window_extent() for text in axes.texts]
    assert len(boxes) == 5
    assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))


def test_bounds_far_apart_are_two_lines_and_say_so():
    axes = plots.privacy_curves(GRID, CURVES)
    names = {text.get_text() for text in axes.texts}
    assert names == {"balls-and-bins", "Poisson", "shuffle, at least", "deterministic"}
    green = [line for line in axes.lines if line.get_color() == look("shuffle")["color"]]
    bound = CURVES["shuffle"]
    np.testing.assert_allclose(green[0].get_ydata(), bound.lower, rtol=1e-12)
    np.testing.assert_allclose(green[1].get_ydata(), bound.upper, rtol=1e-12)
    np.testing.assert_allclose(
        axes.lines[0].get_ydata()[:20], CURVES["balls-and-bins"].value[:20], rtol=1e-12
    )


def test_bars_go_from_the_lower_to_the_upper_bound():
    lower, value, upper = _three()
    bars = {
        "balls-and-bins": (
            np.array([1.0, 3.0, 5.0]),
            Bound("delta", lower, value, upper, "sampled", "x", 0.999),
        )
    }
    axes = plots.privacy_curves(GRID, CURVES, samples=bars)
    (container,) = axes.containers
    segments = np.array(container.lines[2][0].get_segments())
    np.testing.assert_allclose(segments[:, 0, 1], lower, rtol=1e-9)
    np.testing.assert_allclose(segments[:, 1, 1], upper, rtol=1e-9)
    assert any("Monte Carlo (β = 0.001)" in text.get_text() for text in axes.texts)


def test_what_has_no_answer_is_a_gap():
    gap = [*points(9.0), Bound("epsilon", np.nan, np.nan, np.nan, "bounds", "none"), *points(1.0)]
    axes = plots.epsilon_against_noise([0.5, 1.0, 2.0], {"Poisson": gap, "balls-and-bins": points(8, 3, 1)})
    drawn = axes.lines[0].get_ydata()
    assert np.isnan(drawn[1])
    assert np.isfinite(drawn[[0, 2]]).all()


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_file(ending, tmp_path):
    for k in (1, 2):
        plots.save(plots.privacy_curves(GRID, CURVES, title="σ = 1"), tmp_path / f"{k}.{ending}")
    one, two = ((tmp_path / f"{k}.{ending}").read_bytes() for k in (1, 2))
    assert one == two
    assert one.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending])


def test_the_axis_of_auc_is_logarithmic_below_a_tenth_and_linear_above():
    low = _forward(np.array([1e-4, 1e-3, 1e-2, 1e-1]))
    np.testing.assert_allclose(np.diff(low), np.diff(low)[0], rtol=1e-9)
    high = _forward(np.array([0.1, 0.2, 0.3, 1.3]))
    np.testing.assert_allclose(np.diff(high), [0.1, 0.1, 1.0], rtol=1e-9)
    everywhere = np.geomspace(1e-6, 50, 40)
    np.testing.assert_allclose(_backward(_forward(everywhere)), everywhere, rtol=1e-9)
    axes = pictures()["auc"]()
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels[0] == "0"
    assert "0.01" in labels
    assert "10⁻⁴" in labels
    assert "0.3" in labels


def test_ticks_of_a_logarithmic_axis_can_be_read():
    axes = new_axes(None, "x", "y")
    axes.set_xscale("log")
    axes.set_xlim(0.3, 3.0)
    number_axis(axes.xaxis)
    axes.set_yscale("log")
    axes.set_ylim(1e-12, 1.0)
    number_axis(axes.yaxis)
    axes.figure.draw_without_rendering()

    def shown(axis, low, high):
        return [
            label.get_text()
            for label, place in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
            if low <= place <= high
        ]

    assert shown(axes.xaxis, 0.3, 3.0) == ["0.5", "1", "2"]
    assert 4 <= len(shown(axes.yaxis, 1e-12, 1.0)) <= 13


def test_lines_differ_in_print_and_their_names_are_dark_enough():
    """By dash as well as by colour; contrast on white of at least 3 to 1 (WCAG 2.1, graphics and large text)."""
    dashes = [str(style["linestyle"]) for style in LOOKS.values()]
    assert len(set(dashes)) == len(dashes)
    for name, style in LOOKS.items():
        channels = np.array([int(style["color"][k : k + 2], 16) / 255 for k in (1, 3, 5)])
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        luminance = linear @ [0.2126, 0.7152, 0.0722]
        assert 1.05 / (luminance + 0.05) >= 3.0, name


def test_a_long_title_is_not_cut_off():
    axes = new_axes(" ".join(20 * ["a long title"]), "x", "y")
    figure = axes.get_figure(root=True)
    figure.draw_without_rendering()
    title, page = axes.title, figure.bbox
    for text in (title, axes._left_title):  # where it is depends on the style
        extent = text.get_window_extent()
        assert page.x0 <= extent.x0
        assert extent.x1 <= page.x1
        assert extent.y1 <= page.y1


def test_text_is_readable_at_600_pixels():
    axes = pictures()["curves"]()
    axes.figure.savefig(io.BytesIO(), format="png")
    pixels_a_point = 600 / axes.figure.get_size_inches()[0] / 72
    sizes = [text.get_fontsize() for text in (*axes.texts, *axes.get_xticklabels(), axes.title)]
    assert min(sizes) * pixels_a_point >= 11.0


def test_numbers_have_one_format():
    shown = {0.0: "0", 0.05: "0.05", 2.0: "2", 10_000: "10,000", 1e-6: "10⁻⁶", 2.5e-6: "2.5·10⁻⁶", 1e9: "10⁹"}
    assert {value: number(value) for value in shown} == shown


def test_the_delta_asked_for_is_marked_and_labels_of_one_sign_stand_upright():
    axes = plots.privacy_curves(GRID, CURVES, delta=1e-6)
    assert [line for line in axes.lines if set(line.get_ydata()) == {1e-6}]
    assert "δ = 10⁻⁶" in {text.get_text() for text in axes.texts}
    assert axes.yaxis.label.get_rotation() == 0
    assert {"1", "10⁻⁶"} <= {label.get_text() for label in axes.get_yticklabels()}


def test_panels_have_letters_and_are_read_at_the_width_of_a_page():
    panels = new_panels(["one", "two\nof two", "three", "four"], "ε", "δ")
    assert [axes.get_title(loc="left")[:1] for axes in panels] == ["a", "b", "c", "d"]
    assert panels[1].get_title(loc="left").count("\n") == 1
    wide, high = panels[0].figure.get_size_inches()
    assert 1.0 < wide / high < 2.0
    least = min(text.get_fontsize() for text in (*panels[0].get_xticklabels(), panels[0].title))
    assert least * 830 / (72 * wide) >= 11.0  # pixels, as wide as a README shows it

// Fills and colours the figure that chart.py describes. Colours come from the style sheet, so that light and dark
// are decided in one place.
"use strict";

const chart = (() => {
  const state = { figure: null, model: null, curves: [], delta: 1e-6, close: false };

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  async function draw(item, target) {
    await Bokeh.embed.embed_item(item, target);
    const document_ = Bokeh.documents[Bokeh.documents.length - 1];
    state.model = (name) => document_.get_model_by_name(name);
    state.figure = state.model("figure");
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colour);
    colour();
    state.curves.forEach((curve) => curve && show(curve));
    range();
  }

  function colour() {
    if (!state.figure) return;
    const figure = state.figure;
    const [ink, faint, line] = [css("--text"), css("--muted"), css("--line")];
    figure.background_fill_color = css("--card");
    figure.border_fill_color = css("--card");
    for (const axis of [...figure.below, ...figure.left]) {
      axis.axis_label_text_color = ink;
      axis.axis_label_text_font_style = "normal";
      axis.axis_label_text_font_size = "15px";
      axis.major_label_text_color = faint;
      axis.major_label_text_font_size = "12px";
      axis.axis_line_color = line;
      axis.major_tick_line_color = line;
      axis.minor_tick_line_color = null;
    }
    for (const grid of figure.center) grid.grid_line_color = line;
    state.model("given").line_color = faint;
    state.curves.forEach((curve) => curve && paint(curve));
  }

  function paint(curve) {
    const colour_ = css(`--ink-${curve.ink}`);
    const of = (name) => state.model(`${name}-${curve.position}`).glyph;
    of("line").line_color = colour_;
    of("line").line_dash = curve.dash;
    of("least").line_color = colour_;
    of("band").fill_color = colour_;
    of("dot").fill_color = colour_;
  }

  function show(curve) {
    const count = curve.epsilon.length;
    const none = new Array(count).fill(NaN);
    const wide = curve.lower.length > 0;
    const floor = state.delta * 1e-6; // a logarithmic axis has no zero
    const above = (values) => values.map((value) => (value >= floor ? value : NaN));
    state.model(`curve-${curve.position}`).data = {
      epsilon: curve.epsilon,
      lower: (wide ? curve.lower : curve.upper).map((value) => Math.max(value, floor)),
      least: wide ? above(curve.lower) : none,
      upper: above(curve.upper),
      at: curve.at,
      at_most: curve.at_most,
      name: new Array(count).fill(curve.name),
    };
    const known = Number.isFinite(curve.answer);
    state.model(`answer-${curve.position}`).data = {
      epsilon: known ? [curve.answer] : [],
      delta: known ? [curve.delta] : [],
    };
    paint(curve);
  }

  function range() {
    if (!state.figure) return;
    const drawn = state.curves.filter((curve) => curve);
    if (!drawn.length) return;
    const end = (curve) => (curve.answer > 0 ? 1.12 * curve.answer : curve.epsilon.at(-1));
    const all = Math.max(...drawn.map(end));
    const near = Math.max(...drawn.filter((curve) => curve.position < 2).map(end));
    const right = state.close && Number.isFinite(near) ? Math.min(all, 1.6 * near) : all;
    state.figure.x_range.setv({ start: 0, end: right });
    const bottom = 10 ** Math.floor(Math.log10(state.delta) - 1);
    state.figure.y_range.setv({ start: Math.max(bottom, 1e-290), end: 1.5 });
    state.model("given").location = state.delta;
  }

  return {
    draw,
    // a curve that has arrived; `delta` is the one that was asked for
    put(curve, delta) {
      state.delta = delta;
      state.curves[curve.position] = curve;
      if (state.figure) {
        show(curve);
        range();
      }
    },
    // a curve that there is none of any more
    drop(position) {
      const curve = state.curves[position];
      if (!curve) return;
      state.curves[position] = undefined;
      if (!state.figure) return;
      show({ ...curve, epsilon: [], lower: [], upper: [], at: [], at_most: [], answer: null });
      range();
    },
    closer(yes) {
      state.close = yes;
      range();
    },
    get shown() {
      return state.curves;
    },
    get range() {
      return state.figure ? [state.figure.x_range.start, state.figure.x_range.end] : null;
    },
  };
})();

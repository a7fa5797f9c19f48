// The curves δ(ε), drawn as SVG. Colours come from the style sheet, so that light and dark are decided in one place.
"use strict";

// 1e-6 and not 0.000001, 0.6 and not 6e-1
const brief = (value) => (value < 1e-3 ? value.toExponential() : String(value));

const chart = (() => {
  const state = { curves: [], delta: 1e-6, close: false, range: null, dragged: null };
  const parts = {}; // persistent elements: the svg and its groups
  const TOP = 14, LEFT = 50, BOTTOM = 34, LINE = 16; // pixels; LINE is the height of a label
  const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const fixed = (number) => number.toFixed(1);

  // ---- where things are

  function frame() {
    const { width, height } = state.size;
    const longest = Math.max(0, ...drawn().map((curve) => curve.name.length));
    return { left: LEFT, top: TOP, right: width - 18 - Math.max(76, Math.min(7 * longest, 0.34 * width)), bottom: height - BOTTOM };
  }

  const drawn = () => state.curves.filter((curve) => curve);

  function range() {
    const end = (curve) => (curve.answer > 0 ? 1.12 * curve.answer : curve.epsilon.at(-1));
    const all = Math.max(...drawn().map(end));
    // "closer" leaves out what is far to the right of the most private curve
    const near = Math.min(...drawn().map(end).filter((value) => value > 0));
    const right = state.close && Number.isFinite(near) ? Math.min(all, 2.5 * near) : all;
    return { end: right > 0 ? right : 1, floor: Math.max(10 ** (Math.floor(Math.log10(state.delta)) - 1), 1e-290) };
  }

  function scales() {
    const box = frame();
    const { end, floor } = state.range;
    const [low, high] = [Math.log(floor), Math.log(1.5)];
    return {
      ...box,
      x: (epsilon) => box.left + ((box.right - box.left) * epsilon) / end,
      y: (delta) => box.bottom - ((box.bottom - box.top) * (Math.log(delta) - low)) / (high - low),
      deltaAt: (y) => Math.exp(low + ((box.bottom - y) / (box.bottom - box.top)) * (high - low)),
      epsilonAt: (x) => (end * (x - box.left)) / (box.right - box.left),
    };
  }

  // ---- drawing

  function render() {
    if (!parts.svg || !state.size || !drawn().length) return;
    if (state.dragged === null) state.range = range();
    const at = scales();
    parts.svg.setAttribute("viewBox", `0 0 ${state.size.width} ${state.size.height}`);
    parts.clip.innerHTML = `<rect x="${at.left}" y="${at.top - 4}" width="${fixed(at.right - at.left)}" height="${fixed(at.bottom - at.top + 4)}"/>`;
    parts.axes.innerHTML = axes(at);
    parts.lines.innerHTML = drawn().map((curve) => line(curve, at)).join("");
    parts.labels.innerHTML = labels(at);
    handle(at);
    hover(null);
  }

  function axes(at) {
    const { end, floor } = state.range;
    const raw = end / Math.max(3, Math.min(7, (at.right - at.left) / 70));
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= raw);
    const text = [];
    for (let k = 0; k * step <= end * 1.0001; k++) {
      const [x, value] = [fixed(at.x(k * step)), Number((k * step).toPrecision(6))];
      text.push(`<line class="grid" x1="${x}" x2="${x}" y1="${at.top}" y2="${fixed(at.bottom)}"/>`);
      text.push(`<text x="${x}" y="${fixed(at.bottom + 18)}" text-anchor="middle">${value}</text>`);
    }
    const lowest = Math.round(Math.log10(floor));
    const skip = Math.ceil(-lowest / Math.max(3, (at.bottom - at.top) / 34));
    for (let decade = 0; decade >= lowest; decade -= skip) {
      const y = fixed(at.y(10 ** decade));
      text.push(`<line class="grid" x1="${at.left}" x2="${fixed(at.right)}" y1="${y}" y2="${y}"/>`);
      text.push(`<text x="${at.left - 7}" y="${y}" dy="0.34em" text-anchor="end">${brief(Number(`1e${decade}`))}</text>`);
    }
    text.push(`<text class="axis" x="${fixed(at.right + 14)}" y="${fixed(at.bottom + 18)}">ε</text>`);
    text.push(`<text class="axis" x="2" y="${at.top - 2}">δ</text>`);
    return text.join("");
  }

  // points of a bound, down to somewhat below the axis: a logarithm has no zero
  function path(epsilon, values, at) {
    const floor = state.range.floor * 1e-3;
    const points = epsilon.map((e, k) => [at.x(e), values[k]]).filter(([, delta]) => delta >= floor);
    return points.map(([x, delta]) => `${fixed(x)},${fixed(at.y(delta))}`);
  }

  function line(curve, at) {
    const ink = `var(--ink-${curve.ink})`;
    const upper = path(curve.epsilon, curve.upper, at);
    const dash = curve.dash.join(" ");
    let text = "";
    if (curve.lower.length) {
      const raised = curve.lower.map((delta) => Math.max(delta, state.range.floor * 1e-3));
      const lower = path(curve.epsilon, raised, at);
      text += `<polygon points="${[...upper, ...lower.reverse()].join(" ")}" fill="${ink}" fill-opacity="0.14"/>`;
      text += `<polyline points="${lower.join(" ")}" fill="none" stroke="${ink}" stroke-width="1.2"/>`;
    }
    text += `<polyline class="curve" data-name="${escaped(curve.name)}" points="${upper.join(" ")}" fill="none" stroke="${ink}" stroke-width="${curve.main ? 3 : 1.9}" stroke-dasharray="${dash}"/>`;
    const dot = crossing(curve);
    if (dot !== null) {
      text += `<circle cx="${fixed(at.x(dot))}" cy="${fixed(at.y(state.delta))}" r="${curve.main ? 5.5 : 4}" fill="${ink}"/>`;
    }
    return text;
  }

  // ε at which a curve comes down to δ: as answered, or between its points while δ is being moved
  function crossing(curve) {
    if (curve.delta === state.delta) return curve.answer;
    const k = curve.upper.findIndex((delta) => delta <= state.delta);
    if (k < 1) return k === 0 ? 0 : null;
    const [above, below] = [Math.log(curve.upper[k - 1]), Math.log(Math.max(curve.upper[k], 1e-300))];
    const share = (above - Math.log(state.delta)) / (above - below);
    return curve.epsilon[k - 1] + share * (curve.epsilon[k] - curve.epsilon[k - 1]);
  }

  // every name beside the end of its line, none upon another, with a thin line to its own where it had to move
  function labels(at) {
    const level = at.y(state.delta);
    const half = LINE / 2 + 2; // the level of δ is a line, with its name at the right end
    const placed = [
      { x: at.left, y: level, width: at.right - at.left, half },
      { x: at.right, y: level, width: state.size.width - at.right, half: LINE },
    ];
    const ends = drawn().map((curve) => {
      const shown = curve.epsilon.findLastIndex((e, k) => e <= state.range.end && curve.upper[k] >= state.range.floor);
      const next = Math.min(shown + 1, curve.epsilon.length - 1);
      const inside = (e, delta) => [Math.min(at.x(e), at.right), Math.min(at.y(Math.max(delta, 1e-300)), at.bottom)];
      const [x, y] = inside(curve.epsilon[Math.max(shown, 0)], curve.upper[Math.max(shown, 0)]);
      const [nextX, nextY] = [at.x(curve.epsilon[next]), at.y(Math.max(curve.upper[next], state.range.floor * 1e-3))];
      // on from the last point that is inside, to where the line leaves
      const share = Math.min(1, (at.right - x) / (nextX - x || 1), (at.bottom - y) / (nextY - y || 1));
      return { curve, x: x + share * (nextX - x), y: y + share * (nextY - y) };
    });
    ends.sort((one, two) => two.x - one.x || one.y - two.y);
    return ends
      .map(({ curve, x, y }) => {
        const width = 6.6 * curve.name.length;
        const spot = { x: Math.min(x + 8, state.size.width - width - 2), y: Math.min(y, at.bottom - 7), width, half: LINE };
        const hits = (other) =>
          spot.x < other.x + other.width + 4 && other.x < spot.x + width + 4 && Math.abs(spot.y - other.y) < other.half;
        while (placed.some(hits) && spot.y > at.top) spot.y -= 2;
        placed.push(spot);
        const ink = `var(--ink-${curve.ink})`;
        const from = `<line x1="${fixed(x)}" y1="${fixed(y)}" x2="${fixed(spot.x - 2)}" y2="${fixed(spot.y)}" stroke="${ink}" stroke-width="1"/>`;
        return `${from}<text class="name" x="${fixed(spot.x)}" y="${fixed(spot.y)}" dy="0.34em" fill="${ink}" ${curve.main ? 'font-weight="650"' : ""}>${escaped(curve.name)}</text>`;
      })
      .join("");
  }

  // ---- the level of δ: a line that can be dragged, or moved with the arrow keys

  function handle(at) {
    const y = fixed(at.y(state.delta));
    const [x, wide] = [fixed(at.left), fixed(at.right)];
    const grip = state.moved
      ? `<path class="grip" d="M${wide},${y} m-11,0 l5,-9 h12 l5,9 l-5,9 h-12 z"/><path class="arrows" d="M${wide},${y} m-3,-2 l3,-4 l3,4 m0,4 l-3,4 l-3,-4"/>`
      : "";
    parts.handle.innerHTML = `<line class="reach" x1="${x}" x2="${wide}" y1="${y}" y2="${y}"/><line class="level" x1="${x}" x2="${wide}" y1="${y}" y2="${y}"/>${grip}
      <text class="name" x="${fixed(at.right + (state.moved ? 15 : 6))}" y="${y}" dy="0.34em">δ = ${brief(state.delta)}</text>`;
    parts.handle.setAttribute("aria-valuenow", Math.log10(state.delta).toFixed(2));
    parts.handle.setAttribute("aria-valuetext", `δ = ${brief(state.delta)}`);
  }

  function move(delta) {
    const rounded = Number(Math.min(Math.max(delta, 1e-12), 0.1).toPrecision(1));
    if (rounded === state.delta) return;
    state.delta = rounded;
    render();
    state.moved(rounded);
  }

  function key(event) {
    const up = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[event.key];
    if (!up) return;
    event.preventDefault();
    const nice = [1, 2, 5];
    const decade = Math.floor(Math.log10(state.delta) + 1e-9);
    const steps = [-1, 0, 1].flatMap((k) => nice.map((digit) => Number(`${digit}e${decade + k}`)));
    move(up > 0 ? steps.find((x) => x > 1.01 * state.delta) : steps.findLast((x) => x < 0.99 * state.delta));
  }

  function place(event) {
    const box = parts.svg.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  function drag(event) {
    if (!parts.handle.contains(event.target)) return;
    event.preventDefault();
    parts.handle.focus();
    state.dragged = event.pointerId; // axes stand still until it is let go
    parts.svg.setPointerCapture(event.pointerId);
  }

  function drop(event) {
    if (state.dragged !== event.pointerId) return;
    state.dragged = null;
    render();
  }

  // ---- what the curves are under the pointer

  function hover(at) {
    if (!at) {
      parts.hover.innerHTML = "";
      return;
    }
    const view = scales();
    if (at.x < view.left || at.x > view.right || at.y < view.top || at.y > view.bottom) return hover(null);
    const epsilon = view.epsilonAt(at.x);
    // δ falls, so what holds at the point to the left holds here
    const rows = drawn().map((curve) => {
      const k = curve.epsilon.findLastIndex((e) => e <= epsilon);
      return k < 0 ? null : `<tspan x="{x}" dy="17" fill="var(--ink-${curve.ink})">${escaped(curve.name)}: δ ≤ ${curve.at_most[k]}</tspan>`;
    });
    const width = 7 * Math.max(...drawn().map((curve) => curve.name.length + 14));
    const height = 17 * (rows.length + 1) + 12;
    const x = at.x + 14 + width > state.size.width ? at.x - 14 - width : at.x + 14;
    const y = Math.min(Math.max(at.y - height / 2, 2), state.size.height - height - 2);
    const lines = rows.filter((row) => row).join("").replaceAll("{x}", fixed(x + 10));
    parts.hover.innerHTML = `<line class="cross" x1="${fixed(at.x)}" x2="${fixed(at.x)}" y1="${view.top}" y2="${fixed(view.bottom)}"/>
      <rect class="tip" x="${fixed(x)}" y="${fixed(y)}" width="${fixed(width)}" height="${fixed(height)}" rx="6"/>
      <text x="${fixed(x + 10)}" y="${fixed(y + 18)}">at ε = ${Number(epsilon.toPrecision(3))}${lines}</text>`;
  }

  // ---- what others may do

  return {
    // `moved` is told the δ that somebody drags to; without it the level stands still
    mount(target, moved = null) {
      state.moved = moved;
      target.innerHTML = `<svg class="curves"><defs><clipPath id="plot"></clipPath></defs><g class="axes"></g><g class="lines" clip-path="url(#plot)"></g><g class="names"></g><g class="handle"></g><g class="hover" pointer-events="none"></g></svg>`;
      parts.svg = target.querySelector("svg");
      parts.clip = target.querySelector("clipPath");
      for (const [name, selector] of [["axes", ".axes"], ["lines", ".lines"], ["labels", ".names"], ["handle", ".handle"], ["hover", ".hover"]]) {
        parts[name] = target.querySelector(selector);
      }
      if (moved) {
        const about = { tabindex: 0, role: "slider", "aria-label": "δ", "aria-orientation": "vertical", "aria-valuemin": -12, "aria-valuemax": -1 };
        for (const [name, value] of Object.entries(about)) parts.handle.setAttribute(name, value);
        parts.handle.classList.add("movable");
        parts.handle.addEventListener("keydown", key);
        parts.svg.addEventListener("pointerdown", drag);
        parts.svg.addEventListener("pointerup", drop);
        parts.svg.addEventListener("pointercancel", drop);
      }
      parts.svg.addEventListener("pointermove", (event) => {
        if (state.dragged === event.pointerId) move(scales().deltaAt(place(event).y));
        else if (drawn().length && state.range) hover(place(event));
      });
      parts.svg.addEventListener("pointerleave", () => hover(null));
      new ResizeObserver(() => {
        const { clientWidth, clientHeight } = target;
        if (clientWidth > 200 && clientHeight > 100) {
          // smaller only while the page is being laid out
          state.size = { width: clientWidth, height: clientHeight };
          render();
        }
      }).observe(target);
    },
    // a curve that has arrived; `delta` is the one that was asked for
    put(curve, delta) {
      if (state.dragged === null) state.delta = delta;
      state.curves[curve.position] = curve;
      render();
    },
    // a curve that there is none of any more
    drop(position) {
      state.curves[position] = undefined;
      if (parts.lines && !drawn().length) for (const name of ["lines", "labels"]) parts[name].innerHTML = "";
      render();
    },
    closer(yes) {
      state.close = yes;
      render();
    },
    get shown() {
      return drawn();
    },
    get delta() {
      return state.delta;
    },
    get range() {
      return state.range && [0, state.range.end];
    },
  };
})();

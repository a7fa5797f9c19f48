// The live page: knobs in, answers out. The server computes; this file moves text between fields, address and tables.
"use strict";

const byId = (id) => document.getElementById(id);
const defaults = JSON.parse(byId("defaults").textContent);
const knobs = new Map(); // field name → {field, slider, error, knob}
const SAMPLERS = ["balls-and-bins", "poisson", "shuffle", "deterministic"];
const PATIENCE = 800; // milliseconds that a first answer may take before a newer question replaces it
let statement = null;

// ---- knobs: a field with a slider and a place for its error

function build() {
  for (const knob of document.querySelectorAll(".knob")) {
    const name = knob.dataset.field;
    const field = knob.querySelector("input");
    const slider = document.createElement("input");
    slider.type = "range";
    slider.id = `${name}-slider`;
    slider.min = 0;
    slider.max = "powers" in knob.dataset ? Math.round(Math.log2(knob.dataset.high)) : 200;
    slider.step = 1;
    slider.setAttribute("aria-label", `${knob.querySelector("label").textContent}, slider`);
    const error = document.createElement("p");
    error.className = "error";
    error.id = `${name}-error`;
    error.setAttribute("role", "alert");
    field.setAttribute("aria-describedby", error.id);
    field.after(slider);
    knob.append(error);
    knobs.set(name, { field, slider, error, knob });
    slider.addEventListener("input", () => {
      field.value = fromSlider(knob, Number(slider.value) / slider.max);
      slider.setAttribute("aria-valuetext", field.value);
      ask();
    });
    field.addEventListener("input", () => {
      place(name);
      ask();
    });
  }
}

function fromSlider({ dataset }, position) {
  const [low, high] = [Math.log(dataset.low), Math.log(dataset.high)];
  const value = Math.exp(low + position * (high - low));
  if ("whole" in dataset) {
    const digits = "powers" in dataset ? 9 : Number(dataset.digits);
    return String(Math.round(Number(value.toPrecision(digits))));
  }
  return brief(Number(value.toPrecision(Number(dataset.digits))));
}

// 1e-6 and not 0.000001, 0.6 and not 6e-1
function brief(value) {
  return value < 1e-3 ? value.toExponential() : String(value);
}

// put the slider where the field's number is
function place(name) {
  const { field, slider, knob } = knobs.get(name);
  const value = Number(field.value);
  if (value > 0) {
    const [low, high] = [Math.log(knob.dataset.low), Math.log(knob.dataset.high)];
    slider.value = Math.round((slider.max * (Math.log(value) - low)) / (high - low));
  }
  slider.setAttribute("aria-valuetext", field.value);
}

const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

function choose(name, value) {
  const radio = document.querySelector(`input[name="${name}"][value="${value}"]`);
  if (radio) radio.checked = true;
}

// ---- the address holds the question

function query() {
  const by = chosen("by");
  const parameters = new URLSearchParams();
  for (const [name, { field }] of knobs) {
    if ((name === "batch-size" || name === "steps") && name !== by) continue;
    if (name === "max-batch-size" && !byId("truncate").checked) continue;
    if (field.value.trim()) parameters.set(name, field.value.trim());
  }
  if (chosen("fixed-bins")) parameters.set("fixed-bins", "1");
  return parameters;
}

function restore() {
  const given = new URLSearchParams(location.search);
  const fresh = [...given.keys()].length === 0;
  const empty = fresh ? [] : given.get("steps") ? ["epsilon", "examples"] : ["epsilon"]; // what may be left out
  for (const [name, { field }] of knobs) {
    field.value = given.get(name) || (empty.includes(name) ? "" : defaults[name]);
    place(name);
  }
  choose("by", given.get("steps") ? "steps" : "batch-size");
  choose("fixed-bins", given.get("fixed-bins") === "1" ? "1" : "");
  byId("truncate").checked = Boolean(given.get("max-batch-size"));
  arrange();
}

function arrange() {
  const by = chosen("by");
  knobs.get("batch-size").knob.hidden = by !== "batch-size";
  knobs.get("steps").knob.hidden = by !== "steps";
  knobs.get("examples").field.placeholder = by === "steps" ? "optional" : "";
  knobs.get("max-batch-size").knob.hidden = !byId("truncate").checked;
}

// ---- asking

// {controller, since, first: whether number and curve of balls-and-bins are there, fresh: what else is}
let asking = null;
let later = null;
let remembering = null;

function ask() {
  clearTimeout(later);
  if (asking && !asking.first) {
    const wait = asking.since + PATIENCE - performance.now();
    if (wait > 0) {
      // the answer under way is nearly there: let people see it
      later = setTimeout(ask, Math.min(wait, 40));
      return;
    }
  }
  asking?.controller.abort();
  asking = { controller: new AbortController(), since: performance.now(), first: false, fresh: new Set() };
  answer(asking, query());
}

async function answer(mine, parameters) {
  clearTimeout(remembering); // browsers count changes of the address, and a slider makes many
  remembering = setTimeout(() => history.replaceState(null, "", `?${parameters}`), 100);
  document.documentElement.dataset.state = "busy";
  const slow = setTimeout(() => {
    if (mine === asking) wait(mine);
  }, 120);
  try {
    const response = await fetch(`answer?${parameters}`, { signal: mine.controller.signal });
    if (!response.ok) {
      const text = await response.text();
      clearErrors();
      complain(wrong(text));
      wait(mine); // what is shown answers another question
      offer(false);
      finish(mine, "error");
      return;
    }
    clearErrors();
    for await (const event of lines(response.body)) {
      if (mine !== asking) return;
      receive(event, mine);
    }
    finish(mine, "ready");
  } catch (error) {
    if (error.name === "AbortError" || mine !== asking) return;
    complain({ message: "The server does not answer. Is `ballsbins serve` still running?" });
    finish(mine, "error");
  } finally {
    clearTimeout(slow);
  }
}

function wrong(text) {
  try {
    return JSON.parse(text);
  } catch {
    return { message: text };
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

// fade what does not answer the question that is being asked
function wait(mine) {
  byId("busy").classList.add("on");
  const places = ["headline", "calibration", "chart", "statement", "note", ...SAMPLERS.map((name) => `row-${name}`)];
  places.filter((id) => !mine.fresh.has(id)).forEach((id) => byId(id).classList.add("stale"));
}

function finish(mine, state) {
  if (mine !== asking) return;
  mine.first = true;
  byId("busy").classList.remove("on");
  document.documentElement.dataset.state = state;
  if (state === "ready") document.querySelectorAll(".stale").forEach((element) => element.classList.remove("stale"));
}

// what can be copied or used is what was answered last
function offer(yes, ...ids) {
  for (const id of ids.length ? ids : ["use", "copy-markdown", "copy-text"]) byId(id).disabled = !yes;
}

function fill(id, html) {
  byId(id).innerHTML = html; // every text in it was escaped by markup.py
  refresh(id);
}

function refresh(id) {
  asking.fresh.add(id);
  byId(id).classList.remove("stale");
}

function receive(event, mine) {
  const handlers = {
    run() {
      byId("command").textContent = event.command;
      byId("derived").textContent = `${event.steps.toLocaleString("en")} steps per epoch`;
      offer(false);
      if (!query().has("epsilon")) fill("calibration", '<p class="given">State a target ε to have σ found.</p>');
    },
    row() {
      fill(`row-${event.part}`, event.html);
      if (event.headline) {
        fill("headline", event.headline);
        document.documentElement.dataset.latency = Math.round(performance.now() - mine.since);
      }
    },
    curve() {
      chart.put(event, event.delta);
      if (event.position === 0) mine.first = true;
      refresh("chart");
    },
    note() {
      byId("note").textContent = event.text;
      refresh("note");
    },
    calibration() {
      fill("calibration", event.html);
      offer(true, "use");
      byId("use").dataset.value = event.noise_multiplier;
    },
    statement() {
      statement = event;
      fill("statement", event.html);
      offer(true, "copy-markdown", "copy-text");
    },
    error() {
      if (event.html) fill(`row-${event.part}`, event.html);
      if (event.part === "balls-and-bins") {
        fill("headline", '<p class="none">no answer</p>');
        fill("statement", '<p class="waiting">There is nothing to state.</p>');
        chart.drop(0);
        mine.first = true;
      }
      if (event.part === "statement") fill("statement", '<p class="waiting">There is nothing to state.</p>');
      if (event.part === "calibration") fill("calibration", '<p class="none">no answer</p>');
      if (event.part === "shuffle" || event.part === "poisson") {
        byId("note").textContent = "";
        chart.drop(SAMPLERS.indexOf(event.part));
        return; // it stands in the table
      }
      const field = event.field ?? (event.part === "calibration" ? "epsilon" : null);
      complain({ field, message: event.message });
    },
    end() {},
  };
  handlers[event.kind]();
}

// ---- errors, beside the field that they are about

function clearErrors() {
  byId("problem").hidden = true;
  document.querySelectorAll(".error").forEach((element) => (element.textContent = ""));
  for (const { field } of knobs.values()) field.removeAttribute("aria-invalid");
}

function complain({ field, message }) {
  if (field === "steps" && chosen("by") !== "steps") {
    field = knobs.get("examples").field.value.trim() ? "batch-size" : "examples"; // steps follow from the two
  }
  const place_ = field && byId(`${field}-error`);
  const knob = knobs.get(field)?.knob;
  if (!place_ || knob?.hidden) {
    byId("problem").textContent = message;
    byId("problem").hidden = false;
    return;
  }
  if (!place_.textContent) place_.textContent = message;
  knobs.get(field)?.field.setAttribute("aria-invalid", "true");
}

// ---- buttons

async function exportPage() {
  const button = byId("export");
  button.disabled = true;
  button.textContent = "Exporting…";
  try {
    const response = await fetch(`export?${query()}`);
    if (!response.ok) return complain(wrong(await response.text()));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = "privacy.html";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  } catch {
    complain({ message: "The server does not answer. Is `ballsbins serve` still running?" });
  } finally {
    button.disabled = false;
    button.textContent = "Export page";
  }
}

function suggestLargest() {
  const { field } = knobs.get("max-batch-size");
  if (field.value) return;
  const [n, b, steps] = ["examples", "batch-size", "steps"].map((name) => Number(knobs.get(name).field.value));
  const size = chosen("by") === "steps" ? n / steps : b;
  // eight standard deviations above the mean are hardly ever passed
  if (size > 0 && Number.isFinite(size)) field.value = String(Math.ceil(size + 8 * Math.sqrt(size)));
  place("max-batch-size");
}

build();
restore();
for (const name of ["by", "fixed-bins"]) {
  document.querySelectorAll(`input[name="${name}"]`).forEach((radio) =>
    radio.addEventListener("change", () => {
      if (name === "by" && radio.value === "steps" && !knobs.get("steps").field.value) {
        const [n, b] = ["examples", "batch-size"].map((field) => Number(knobs.get(field).field.value));
        knobs.get("steps").field.value = String(Math.ceil(n / b) || 1000);
        place("steps");
      }
      if (name === "by" && radio.value === "batch-size" && !knobs.get("examples").field.value) {
        knobs.get("examples").field.value = defaults.examples;
        place("examples");
      }
      arrange();
      ask();
    }),
  );
}
document.querySelectorAll('input[name="range"]').forEach((radio) =>
  radio.addEventListener("change", () => chart.closer(chosen("range") === "close")),
);
byId("truncate").addEventListener("change", () => {
  if (byId("truncate").checked) suggestLargest();
  arrange();
  ask();
});
byId("use").addEventListener("click", () => {
  knobs.get("noise-multiplier").field.value = byId("use").dataset.value;
  place("noise-multiplier");
  ask();
});
byId("share").addEventListener("click", () => copyText(new URL(`?${query()}`, location.href).href, byId("share")));
byId("export").addEventListener("click", exportPage);
for (const kind of ["markdown", "text"]) {
  byId(`copy-${kind}`).addEventListener("click", () => copyText(statement[kind], byId(`copy-${kind}`)));
}
byId("knobs").addEventListener("submit", (event) => event.preventDefault());
addEventListener("popstate", () => {
  restore();
  ask();
});
ask();
chart.draw(JSON.parse(byId("figure").textContent), byId("chart")).then(() => {
  document.documentElement.dataset.drawn = "yes";
});

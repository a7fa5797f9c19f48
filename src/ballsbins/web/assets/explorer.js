// The live page: knobs in, answers out. The server computes; this file moves text between fields, address and tables.
"use strict";

const byId = (id) => document.getElementById(id);
const { fields: defaults, presets } = JSON.parse(byId("defaults").textContent);
const knobs = new Map(); // field name → {field, slider, error, knob}
const SAMPLERS = ["balls-and-bins", "poisson", "shuffle", "deterministic"]; // as in the table and the chart
const VARYING = ["balls-and-bins", "poisson", "unknown"]; // batches whose sizes vary, so that large ones can be cut
// every place that holds a part of an answer, with what stands there when the question has no such part
const EMPTY = {
  headline: '<p class="none">no answer</p>',
  picture: "",
  calibration: '<p class="given">State a target ε to have σ found.</p>',
  chart: null, // curves come and go one by one
  statement: '<p class="waiting">There is nothing to state.</p>',
  brief: "",
  "no-curve": "",
  ...Object.fromEntries(SAMPLERS.map((name) => [`row-${name}`, `<th scope="row">${name.replace("poisson", "Poisson")}</th><td class="number waiting">–</td>`])),
};
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
      byId("preset").value = "";
      ask();
    });
    field.addEventListener("input", () => {
      place(name);
      byId("preset").value = "";
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
  const [by, sampler] = [chosen("by"), chosen("sampler")];
  const parameters = new URLSearchParams({ sampler });
  for (const [name, { field }] of knobs) {
    if ((name === "batch-size" || name === "steps") && name !== by) continue;
    if (name === "max-batch-size" && !(byId("truncate").checked && VARYING.includes(sampler))) continue;
    if (field.value.trim()) parameters.set(name, field.value.trim());
  }
  if (chosen("fixed-bins") && sampler === "balls-and-bins") parameters.set("fixed-bins", "1");
  return parameters;
}

function restore() {
  const given = new URLSearchParams(location.search);
  const fresh = [...given.keys()].length === 0;
  const empty = fresh ? [] : given.get("steps") ? ["epsilon", "examples"] : ["epsilon"]; // what may be left out
  for (const name of knobs.keys()) set(name, given.get(name) || (empty.includes(name) ? "" : defaults[name]));
  choose("sampler", defaults.sampler);
  choose("sampler", given.get("sampler"));
  choose("by", given.get("steps") ? "steps" : "batch-size");
  choose("fixed-bins", given.get("fixed-bins") === "1" ? "1" : "");
  byId("truncate").checked = Boolean(given.get("max-batch-size"));
  byId("preset").value = fresh ? Object.keys(presets)[0] : "";
  arrange();
}

function set(name, text) {
  knobs.get(name).field.value = text;
  place(name);
}

// show what the chosen way to draw batches can have
function arrange() {
  const [by, sampler] = [chosen("by"), chosen("sampler")];
  knobs.get("batch-size").knob.hidden = by !== "batch-size";
  knobs.get("steps").knob.hidden = by !== "steps";
  knobs.get("examples").field.placeholder = by === "steps" ? "optional" : "";
  byId("bins").hidden = sampler !== "balls-and-bins";
  byId("limit").hidden = !VARYING.includes(sampler);
  knobs.get("max-batch-size").knob.hidden = byId("limit").hidden || !byId("truncate").checked;
}

function preset() {
  const fields = presets[byId("preset").value];
  if (!fields) return;
  for (const [name, text] of Object.entries(fields)) set(name, text);
  choose("by", "batch-size");
  choose("fixed-bins", "");
  byId("truncate").checked = false;
  arrange();
  ask();
}

// ---- asking

// {controller, since, first: whether the number that was asked for is there, fresh: the places that answer already}
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
      if (mine !== asking) return;
      clearErrors();
      complain(wrong(text));
      refused(mine);
      return;
    }
    clearErrors();
    for await (const event of lines(response.body)) {
      if (mine !== asking) return;
      receive(event, mine);
    }
    if (mine === asking) complete(mine);
  } catch (error) {
    if (error.name === "AbortError" || mine !== asking) return;
    complain({ message: "The server does not answer. Is `ballsbins serve` still running?" });
    refused(mine);
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
  Object.keys(EMPTY).filter((id) => !mine.fresh.has(id)).forEach((id) => byId(id).classList.add("stale"));
}

// nothing is answered: what is on the page belongs to an earlier question, and says so
function refused(mine) {
  wait(mine);
  offer(false);
  byId("warning").hidden = true;
  byId("command").textContent = "";
  byId("derived").textContent = "";
  if (byId("problem").hidden) announce("No answer yet: correct the field marked in red. What is faded answers an earlier question.");
  if (mine === asking) finish("error");
}

// everything is answered: what no part of the answer has filled is emptied, so that nothing old is left
function complete(mine) {
  for (const [id, html] of Object.entries(EMPTY)) {
    if (!mine.fresh.has(id) && html !== null) fill(id, html);
  }
  SAMPLERS.forEach((_, position) => mine.fresh.has(`curve-${position}`) || chart.drop(position));
  byId("chart").classList.remove("stale");
  finish("ready");
}

function finish(state) {
  asking.first = true;
  byId("busy").classList.remove("on");
  document.documentElement.dataset.state = state;
}

// what can be copied or used is what was answered last
function offer(yes, ...ids) {
  for (const id of ids.length ? ids : ["use", "copy-sentence", "copy-markdown", "copy-text"]) byId(id).disabled = !yes;
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
      const limit = event.max_batch_size;
      byId("chosen-limit").textContent = limit ? `batches of at most ${limit.toLocaleString("en")}` : "";
      byId("warning").textContent = event.warning ?? "";
      byId("warning").hidden = !event.warning;
      offer(false);
    },
    row() {
      fill(`row-${event.part}`, event.html);
    },
    headline() {
      fill("headline", event.html);
      fill("brief", byId("headline").querySelector(".epsilon").innerHTML.replaceAll("output", "span"));
      mine.first = true;
      document.documentElement.dataset.latency = Math.round(performance.now() - mine.since);
    },
    picture() {
      fill("picture", event.html);
    },
    curve() {
      chart.put(event, event.delta);
      mine.fresh.add(`curve-${event.position}`);
      refresh("chart");
    },
    "no-curve"() {
      fill("no-curve", ""); // its text is set as text
      byId("no-curve").textContent = event.message;
    },
    calibration() {
      fill("calibration", event.html);
      offer(true, "use");
      byId("use").dataset.value = event.noise_multiplier;
    },
    statement() {
      statement = event;
      fill("statement", event.html);
      offer(true, "copy-sentence", "copy-markdown", "copy-text");
    },
    error() {
      if (event.html) fill(`row-${event.part}`, event.html);
      if (event.main) explain("headline", event.message);
      if (event.part === "calibration" || event.part === "statement") explain(event.part, event.message);
      if (event.main) mine.first = true;
      // only an input that the error names is painted red
      if (event.field && (event.main || event.part === "calibration")) complain(event);
    },
    end() {},
  };
  handlers[event.kind]();
}

// "no answer" with its reason, in the place of the answer
function explain(id, message) {
  fill(id, '<p class="none">no answer</p><p class="given"></p>');
  byId(id).querySelector(".given").textContent = message;
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
  if (!place_ || knob?.hidden) return announce(message);
  if (!place_.textContent) place_.textContent = message;
  knobs.get(field)?.field.setAttribute("aria-invalid", "true");
}

function announce(message) {
  byId("problem").textContent = message;
  byId("problem").hidden = false;
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

build();
restore();
for (const name of ["sampler", "by", "fixed-bins"]) {
  document.querySelectorAll(`input[name="${name}"]`).forEach((radio) =>
    radio.addEventListener("change", () => {
      if (name === "by" && radio.value === "steps" && !knobs.get("steps").field.value) {
        const [n, b] = ["examples", "batch-size"].map((field) => Number(knobs.get(field).field.value));
        set("steps", String(Math.ceil(n / b) || 1000));
      }
      if (name === "by" && radio.value === "batch-size" && !knobs.get("examples").field.value) {
        set("examples", defaults.examples);
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
  if (!knobs.get("max-batch-size").field.value) set("max-batch-size", "auto"); // the server finds one that it accepts
  arrange();
  ask();
});
byId("use").addEventListener("click", () => {
  set("noise-multiplier", byId("use").dataset.value);
  byId("preset").value = "";
  ask();
});
byId("preset").addEventListener("change", preset);
byId("share").addEventListener("click", () => copyText(new URL(`?${query()}`, location.href).href, byId("share")));
byId("export").addEventListener("click", exportPage);
for (const kind of ["sentence", "markdown", "text"]) {
  byId(`copy-${kind}`).addEventListener("click", () => copyText(statement[kind], byId(`copy-${kind}`)));
}
byId("knobs").addEventListener("submit", (event) => event.preventDefault());
addEventListener("popstate", () => {
  restore();
  ask();
});
chart.mount(byId("chart"), (delta) => {
  set("delta", brief(delta));
  byId("preset").value = "";
  ask();
});
for (const [id, html] of Object.entries(EMPTY)) if (id.startsWith("row-")) byId(id).innerHTML = html;
document.documentElement.dataset.drawn = "yes";
ask();

"use strict";
// Builds the widgets, sends each change to the server, and shows the numbers and charts that come back.

const START = JSON.parse(document.getElementById("start").textContent);
const element = (id) => document.getElementById(id);
// Sections in the order of the page; each is filled when its part of a run arrives.
const ORDER = ["breakdown", "summary", "memory", "pipeline", "timeline", "links", "comparison", "report"];
const EARLY = ["breakdown", "summary", "memory"], LATE = ["pipeline", "comparison"];
const fields = new Map();
const before = [];
let data = START.data, hidden = [], busy = false, waiting = null, generation = 0;

async function post(path, body) {
  const response = await fetch(`${path}?token=${encodeURIComponent(START.token)}`, {
    method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
  });
  const answer = response.headers.get("content-type").includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

function made(kind, properties, ...children) {
  const node = Object.assign(document.createElement(kind), properties);
  node.append(...children);
  return node;
}

function input(widget) {
  const id = `widget-${widget.key}`;
  if (widget.free) {
    const list = made("datalist", { id: `${id}-list` }, ...widget.choices.map((value) => made("option", { value })));
    const field = made("input", { id, name: widget.key, type: "text", spellcheck: false });
    field.setAttribute("list", list.id);
    return [field, list];
  }
  const options = ["", ...widget.choices].map((value) => made("option", { value, textContent: value || "(default)" }));
  return [made("select", { id, name: widget.key }, ...options)];
}

function build() {
  let group = null;
  for (const widget of START.widgets) {
    if (!group || group.dataset.group !== widget.group) {
      group = made("fieldset", {}, made("legend", { textContent: widget.group }));
      group.dataset.group = widget.group;
      element("widgets").append(group);
    }
    const [field, ...rest] = input(widget);
    const label = made("label", { htmlFor: field.id, textContent: widget.key, title: widget.description });
    const fault = made("p", { className: "fault", id: `${field.id}-fault`, hidden: true });
    field.title = widget.description;
    field.setAttribute("aria-describedby", fault.id);
    const box = made("div", { className: "widget" }, label, field, ...rest, fault);
    group.append(box);
    fields.set(widget.key, { field, box, fault });
    field.addEventListener("change", () => change({ [widget.key]: field.value }));
  }
  element("widgets").addEventListener("submit", (event) => event.preventDefault());
  START.lessons.forEach((lesson, number) => {
    element("lesson").append(made("option", { value: number, textContent: `${number + 1}. ${lesson.title}` }));
  });
}

function showValues(values) {
  for (const [key, { field }] of fields) {
    const value = values[key];
    if (field.tagName === "SELECT" && !Array.from(field.options).some((one) => one.value === value)) {
      field.append(made("option", { value, textContent: value }));
    }
    field.value = value;
  }
}

// What holds where a widget has no value: a preset's value or the schema's default.
function showDefaults(defaults) {
  for (const [key, { field }] of fields) {
    const text = defaults[key] ? `default: ${defaults[key]}` : "default";
    if (field.tagName === "SELECT") field.options[0].textContent = `(${text})`;
    else field.placeholder = text;
  }
}

// Messages stand beside their widgets, which are then shown; others stand below all widgets.
function showFaults(faults) {
  const wrong = new Map();
  for (const { key, text } of faults) wrong.set(key, wrong.has(key) ? `${wrong.get(key)}\n${text}` : text);
  for (const [key, { field, box, fault }] of fields) {
    box.hidden = hidden.includes(key) && !wrong.has(key);
    box.classList.toggle("wrong", wrong.has(key));
    field.setAttribute("aria-invalid", wrong.has(key));
    fault.hidden = !wrong.has(key);
    fault.textContent = wrong.get(key) || "";
  }
  document.querySelectorAll("fieldset").forEach((group) => {
    group.hidden = Array.from(group.querySelectorAll(".widget")).every((box) => box.hidden);
  });
  element("page-fault").hidden = !wrong.has("");
  element("page-fault").textContent = wrong.get("") || "";
}

function showHeadline(headline) {
  element("headline").replaceChildren(...headline.map(({ name, text, wrong }) =>
    made("div", { className: wrong ? "wrong" : "" },
      made("dt", { textContent: wrong ? `${name}: does not fit` : name }), made("dd", { textContent: text }))));
}

function slot(key) {
  return element("sections").querySelector(`[data-slot="${key}"]`);
}

function showSections({ sections, charts }) {
  Object.assign(DATA, charts);
  for (const [key, html] of Object.entries(sections)) {
    const place = slot(key);
    place.querySelectorAll(".chart[data-drawn]").forEach((one) => Plotly.purge(one));
    place.innerHTML = html;
    attach(place);
  }
}

function empty(keys) {
  for (const key of keys) slot(key).replaceChildren();
}

// One change after the other: those made while a run is under way are sent together when it has ended.
async function change(set) {
  if (busy) {
    waiting = { ...waiting, ...set };
    return;
  }
  busy = true;
  document.querySelector("main").classList.add("stale");
  element("state").textContent = "Simulating";
  try {
    await simulate(set);
  } catch (error) {
    element("state").textContent = error.message;
  }
  busy = false;
  if (waiting) {
    const next = waiting;
    waiting = null;
    change(next);
  }
}

// Begin anew from other data; the answer to a run under way is not shown.
function begin(other) {
  generation += 1;
  data = other;
  change({});
}

async function simulate(set) {
  const mine = generation, begun = performance.now(), old = data;
  const answer = await post("run", { data, set });
  if (mine !== generation) return;
  data = answer.data;
  if (JSON.stringify(old) !== JSON.stringify(data)) before.push(old);
  element("back").disabled = !before.length;
  hidden = answer.hidden || hidden;
  // a text that cannot be read stays in its field
  if (!answer.faults.some(({ key }) => key in set && answer.values[key] !== set[key])) showValues(answer.values);
  if (answer.defaults) showDefaults(answer.defaults);
  showFaults(answer.faults);
  element("yaml").querySelector("pre").textContent = answer.yaml;
  if (!answer.run) {
    element("state").textContent = "Not simulated: a value is wrong. Numbers and charts are of the last run.";
    return;
  }
  const seconds = ((performance.now() - begun) / 1000).toFixed(2);
  element("state").textContent = `Run ${answer.run}, ${seconds} s`;
  document.querySelector("main").classList.remove("stale");
  showHeadline(answer.headline);
  showSections(answer);
  empty(EARLY.filter((key) => !(key in answer.sections)));
  if (waiting) return;
  const rest = await post("charts", { run: answer.run });
  showSections(rest);
  empty(LATE.filter((key) => !(key in rest.sections)));
  document.body.dataset.run = answer.run;
}

function choose(number) {
  const lesson = START.lessons[number];
  for (const [key, { box }] of fields) box.classList.toggle("change", lesson !== undefined && key === lesson.change);
  element("lesson-text").hidden = lesson === undefined;
  element("lesson-text").textContent = lesson ? lesson.text : "";
  before.push(data);
  begin(lesson ? lesson.data : START.data);
}

async function plan() {
  const button = element("better"), shown = element("plan");
  button.disabled = true;
  element("state").textContent = "Planning: some seconds, a minute for a large run";
  try {
    const answer = await post("plan", { data });
    const offers = answer.best.map(({ label, set }, number) => {
      const take = made("button", { type: "button", textContent: `Take ${number + 1}: ${label}` });
      take.addEventListener("click", () => change(set));
      return take;
    });
    element("offers").replaceChildren(...offers);
    shown.querySelector("pre").textContent = answer.report;
    shown.hidden = false;
    shown.open = true;
    element("state").textContent = "Planned";
  } catch (error) {
    element("state").textContent = error.message;
  }
  button.disabled = false;
}

build();
ORDER.forEach((key) => {
  const place = made("div", {});
  place.dataset.slot = key;
  element("sections").append(place);
});
element("lesson").addEventListener("change", () => choose(element("lesson").value));
element("better").addEventListener("click", plan);
element("back").addEventListener("click", () => {
  begin(before.pop());
});
element("copy").addEventListener("click", () => {
  navigator.clipboard.writeText(element("yaml").querySelector("pre").textContent);
  element("state").textContent = "YAML copied";
});
// a lesson is chosen by its number in the address: #lesson-8
const named = /^#lesson-(\d+)$/.exec(location.hash);
if (named && START.lessons[named[1] - 1]) {
  element("lesson").value = named[1] - 1;
  choose(named[1] - 1);
} else {
  change({});
}

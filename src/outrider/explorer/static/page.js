// The frame: tabs, theme, settings of the views, and the address that holds them all.

import { isDark, redraw } from "./plots.js";
import * as theory from "./theory.js";
import * as exactness from "./exactness.js";
import * as steps from "./steps.js";
import * as live from "./live.js";

const views = { theory, exactness, steps, live };
const given = new URLSearchParams(location.search);
const state = Object.fromEntries(Object.keys(views).map((name) => [name, {}]));
let current = null;

function controls(section) {
  return [...section.querySelectorAll("form.controls [name]")];
}

// Values come from the address first, so that the server may refuse what no slider could mean.
function read(section) {
  return Object.fromEntries(controls(section).map((control) => [control.name, state[section.id][control.name] ?? control.value]));
}

function shown(section) {
  for (const control of controls(section)) {
    const value = control.closest("label")?.querySelector(".value"); // no <output>: the label would be its name, not the slider's
    if (value) value.textContent = state[section.id][control.name] ?? control.value;
  }
}

function write() {
  const query = new URLSearchParams({ view: current });
  const section = document.getElementById(current);
  for (const control of controls(section)) {
    const value = state[current][control.name] ?? control.value;
    if (value !== initial(control)) query.set(control.name, value);
  }
  const theme = document.documentElement.dataset.theme;
  if (theme) query.set("theme", theme);
  history.replaceState(null, "", `?${query}`);
}

function initial(control) {
  if (control.tagName === "SELECT") return ([...control.options].find((option) => option.defaultSelected) ?? control.options[0])?.value ?? "";
  return control.defaultValue;
}

let asked = 0;

async function update() {
  const section = document.getElementById(current);
  const mine = ++asked;
  shown(section);
  write();
  section.setAttribute("aria-busy", "true");
  await views[current].update(section, read(section));
  if (mine === asked) section.setAttribute("aria-busy", "false");
}

function open(name) {
  current = name;
  for (const button of document.querySelectorAll("[role=tab]")) {
    const isOpen = button.dataset.view === name;
    button.setAttribute("aria-selected", String(isOpen));
    button.tabIndex = isOpen ? 0 : -1;
    document.getElementById(button.dataset.view).hidden = !isOpen;
  }
  update();
}

function setTheme(value) {
  if (value === "light" || value === "dark") document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  document.getElementById("theme").value = document.documentElement.dataset.theme ?? "";
}

function listen() {
  for (const section of document.querySelectorAll("[role=tabpanel]")) {
    for (const control of controls(section)) {
      control.addEventListener("input", () => {
        delete state[section.id][control.name];
        if (current === section.id) update();
      });
    }
    section.querySelector("form.controls").addEventListener("submit", (event) => event.preventDefault());
  }
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const [number, button] of tabs.entries()) {
    button.addEventListener("click", () => open(button.dataset.view));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(number + step + tabs.length) % tabs.length];
      next.focus();
      open(next.dataset.view);
    });
  }
  document.getElementById("theme").addEventListener("change", (event) => {
    setTheme(event.target.value);
    write();
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => isDark() !== null && redraw());
}

async function start() {
  setTheme(given.get("theme"));
  listen();
  const wanted = views[given.get("view")] ? given.get("view") : "theory";
  for (const [name, view] of Object.entries(views)) await view.start?.(document.getElementById(name), () => current === name && update());
  const section = document.getElementById(wanted);
  for (const control of controls(section)) {
    const value = given.get(control.name);
    if (value === null) continue;
    control.value = value;
    if (control.value !== value) state[wanted][control.name] = value;
  }
  open(wanted);
}

start();

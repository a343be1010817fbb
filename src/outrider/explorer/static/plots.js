// Plots: each is drawn once from the server's specification, afterwards only its rows change.

import { ask } from "./ask.js";

let specifications = null;
const drawn = new Map();
const newest = new Map();

async function library() {
  for (let tries = 0; tries < 600 && !window.vegaEmbed; tries++) await new Promise((done) => setTimeout(done, 50));
  return window.vegaEmbed;
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export async function plot(figure, rows) {
  const name = figure.dataset.plot;
  newest.set(figure, rows);
  table(figure, rows);
  if (!drawn.has(figure)) {
    drawn.set(figure, draw(figure, name, rows));
  }
  const view = await drawn.get(figure);
  if (!view || newest.get(figure) !== rows) return;
  try {
    await view.data(name, structuredClone(rows)).resize().runAsync();
  } catch (error) {
    console.error(error);
  }
}

async function draw(figure, name, rows) {
  const embed = await library();
  specifications ??= ask("api/charts").then((answer) => answer?.json());
  const specification = (await specifications)?.[name];
  if (!embed || !specification) return null;
  const options = { actions: false, renderer: "svg", config: look() };
  const { title, ...rest } = specification;
  caption(figure, title);
  const filled = { ...rest, description: title, datasets: { [name]: structuredClone(rows) } };
  return (await embed(place(figure), filled, options)).view;
}

// Colours that can be told apart on either ground, lines that stay behind the data.
function look() {
  const [ink, line, colours] = isDark()
    ? ["#e9ecef", "#343a40", ["#8fb0ff", "#ffa94d", "#868e96", "#c9a7ff"]]
    : ["#1b1d21", "#e3e7eb", ["#1c4fd8", "#d9600b", "#adb5bd", "#6f3bb8"]];
  const written = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { ...written, gridColor: line, domainColor: line, tickColor: line, labelOverlap: true },
    legend: { ...written, orient: "bottom", symbolOpacity: 1 },
    range: { category: colours },
    line: { color: colours[0] },
    point: { color: colours[0] },
    bar: { color: colours[0] },
    rule: { color: ink },
    tick: { color: ink },
  };
}

function caption(figure, title) {
  let words = figure.querySelector("figcaption");
  if (!words) {
    words = document.createElement("figcaption");
    figure.prepend(words);
  }
  words.textContent = title;
}

export async function redraw() {
  const figures = [...drawn.keys()];
  drawn.clear();
  for (const figure of figures) await plot(figure, newest.get(figure));
}

function place(figure) {
  let inner = figure.querySelector(".drawn");
  if (!inner) {
    inner = document.createElement("div");
    inner.className = "drawn";
    const words = figure.querySelector("figcaption");
    if (words) words.after(inner);
    else figure.prepend(inner);
  }
  return inner;
}

// The same numbers for those who read rather than look; filled when it is opened.
function table(figure, rows) {
  let more = figure.querySelector("details");
  if (!more) {
    more = document.createElement("details");
    const label = document.createElement("summary");
    label.textContent = "The numbers of this plot";
    more.append(label, document.createElement("table"));
    more.addEventListener("toggle", () => fill(more, newest.get(figure)));
    figure.append(more);
  }
  fill(more, rows);
}

function fill(more, rows) {
  if (!more.open || !rows?.length) return;
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const lines = [names, ...rows.slice(0, 400).map((row) => names.map((name) => written(row[name])))];
  more.querySelector("table").replaceChildren(...lines.map((cells, number) => {
    const line = document.createElement("tr");
    line.append(...cells.map((cell) => {
      const box = document.createElement(number ? "td" : "th");
      box.textContent = cell;
      return box;
    }));
    return line;
  }));
}

function written(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
}

// The view of one round: a list of steps and a place in it.

import { latest } from "./ask.js";
import { query } from "./numbers.js";
import { plot } from "./plots.js";
import { tree } from "./tree.js";

const question = latest();
const named = (id) => document.getElementById(id);
let round = null;
let place = 0;
let timer = null;

export function start(section) {
  named("back").addEventListener("click", () => go(place - 1));
  named("next").addEventListener("click", () => go(place + 1));
  named("play").addEventListener("click", () => (timer ? pause() : play()));
  section.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select, textarea")) return;
    if (event.key === "ArrowRight") go(place + 1);
    if (event.key === "ArrowLeft") go(place - 1);
  });
}

export async function update(section, values) {
  pause();
  const answer = await question(`api/round?${query(values)}`);
  if (!answer) return;
  round = answer;
  go(0);
}

function play() {
  if (round && place === round.steps.length - 1) go(0);
  named("play").setAttribute("aria-pressed", "true");
  named("play").textContent = "Pause";
  timer = setInterval(() => (round && place < round.steps.length - 1 ? go(place + 1) : pause()), 1400);
}

function pause() {
  clearInterval(timer);
  timer = null;
  named("play").setAttribute("aria-pressed", "false");
  named("play").textContent = "Play";
}

function go(wanted) {
  if (!round) return;
  place = Math.max(0, Math.min(round.steps.length - 1, wanted));
  const step = round.steps[place];
  named("telling").textContent = step.text;
  named("place").textContent = `step ${place + 1} of ${round.steps.length}`;
  named("back").disabled = place === 0;
  named("next").disabled = place === round.steps.length - 1;
  named("tree").replaceChildren(tree(round.nodes, node));
  named("emitted").textContent = place === round.steps.length - 1 ? round.emitted.join(" ") : "…";
  named("told").replaceChildren(...round.steps.slice(0, place + 1).map((one, number) => {
    const item = document.createElement("li");
    item.textContent = one.text;
    if (number === place) item.className = "now";
    return item;
  }));
  plot(document.querySelector("#steps [data-plot=step]"), round.laws.concat(step.law ?? []));
  const coin = document.querySelector("#steps [data-plot=coin]");
  coin.hidden = !step.coin;
  if (step.coin) plot(coin, step.coin);
}

function node(one, number) {
  const box = document.createElement("span");
  const seen = round.steps.slice(0, place + 1);
  const last = place === round.steps.length - 1;
  const fate = last ? (round.accepted.includes(number) ? "accept" : "reject") : seen.findLast((step) => step.node === number && ["accept", "reject"].includes(step.kind))?.kind;
  box.className = `node ${fate ?? ""}`;
  if (!seen.some((step) => step.kind === "draft" && step.node === number)) box.classList.add("unseen");
  if (round.steps[place].node === number) box.classList.add("now");
  box.textContent = one.letter;
  const more = document.createElement("small");
  more.textContent = `q ${one.q.toFixed(3)}, p ${one.p.toFixed(3)}${fate ? `, ${fate === "accept" ? "kept" : "not kept"}` : ""}`;
  box.append(more);
  return box;
}

// The view of exactness: many rounds of the real verifier.

import { ask, latest } from "./ask.js";
import { query, show } from "./numbers.js";
import { plot } from "./plots.js";

const question = latest();
const FIRST = 500;
const verdict = document.getElementById("verdict");
let faults = {};

export async function start() {
  faults = (await (await ask("api/choices"))?.json()) ?? {};
  choices(document.querySelector("#exactness [name=rule]").value, new URLSearchParams(location.search).get("fault") ?? "");
}

// Only faults that the rule can have; another rule keeps a fault if it has it too.
function choices(rule, wanted) {
  const list = document.querySelector("#exactness [name=fault]");
  if (list.dataset.rule === rule) return;
  list.dataset.rule = rule;
  const options = (faults[rule] ?? []).map((name) => new Option(name, name));
  list.replaceChildren(list.options[0], ...options);
  list.value = wanted;
  if (list.selectedIndex < 0) list.value = "";
}

export async function update(section, values) {
  const list = section.querySelector("[name=fault]");
  if (list.dataset.rule !== values.rule) {
    choices(values.rule, list.value || values.fault);
    values.fault = list.value;
  }
  const { length, rounds, ...rest } = values;
  verdict.className = "verdict";
  // the rule that judges node by node is the slowest: its first rounds are shown before the others have ended
  for (const count of values.rule === "traversal" && rounds > FIRST ? [FIRST, rounds] : [rounds]) {
    const answer = await question(`api/exactness?${query({ ...rest, rounds: count, widths: Array(Number(length) || 1).fill(1).join(",") })}`);
    if (!answer) return;
    show(section, answer.numbers);
    verdict.textContent = answer.words;
    verdict.className = `verdict ${answer.numbers.matches ? "good" : "bad"}`;
    for (const figure of section.querySelectorAll("[data-plot]")) plot(figure, answer.rows[figure.dataset.plot]);
  }
}

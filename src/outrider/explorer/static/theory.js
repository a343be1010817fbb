// The view of the closed forms.

import { latest } from "./ask.js";
import { query, show } from "./numbers.js";
import { plot } from "./plots.js";

const question = latest();
const words = document.getElementById("theory-words");

export async function update(section, values) {
  const answer = await question(`api/theory?${query(values)}`);
  if (!answer) return;
  show(section, answer.numbers);
  words.textContent = answer.words;
  for (const figure of section.querySelectorAll("[data-plot]")) plot(figure, answer.rows[figure.dataset.plot]);
}

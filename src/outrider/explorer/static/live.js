// The view of a real run: two texts that grow side by side.

import { ask, tell } from "./ask.js";
import { show } from "./numbers.js";
import { plot } from "./plots.js";
import { tree } from "./tree.js";

const named = (id) => document.getElementById(id);
let run = null;
let stopper = null;
let settings = {};

export async function start() {
  named("live-form").addEventListener("submit", (event) => {
    event.preventDefault();
    race();
  });
  named("stop").addEventListener("click", () => stopper?.abort());
  named("save").addEventListener("click", save);
  named("open").addEventListener("change", openTrace);
  named("which").addEventListener("input", () => drawTree(Number(named("which").value)));
  show(named("live"), {});
  const answer = await ask("api/model");
  if (answer) named("model").textContent = (await answer.json()).name;
}

export function update(section, values) {
  settings = values;
  if (run) draw(false);
}

function fresh() {
  run = { events: [], sources: [], numbers: {}, rounds: [], rows: [] };
  for (const id of ["text-on", "text-off", "legend", "live-tree"]) named(id).replaceChildren();
}

async function race() {
  if (stopper) return;
  fresh();
  stopper = new AbortController();
  busy(true);
  say("Reading the prompt; the first run also loads the model.");
  const { live_seed: seed, live_length: length, ...rest } = settings;
  const body = JSON.stringify({
    prompt: rest.prompt, drafter: rest.drafter, seed: seed === "" ? null : Number(seed), length: Number(length),
    max_tokens: Number(rest.max_tokens), temperature: Number(rest.temperature), width: Number(rest.width),
  });
  const answer = await ask("api/live", { method: "POST", body, headers: { "Content-Type": "application/json" }, signal: stopper.signal });
  try {
    if (answer) await follow(answer.body.getReader());
    else say(stopper.signal.aborted ? "Stopped." : "Nothing was run.");
  } catch (error) {
    if (error.name === "AbortError") say("Stopped.");
    else {
      say("The run broke off.");
      tell("The server does not answer. Start it again with `outrider explore`, then run again.");
    }
  }
  stopper = null;
  busy(false);
  draw();
}

async function follow(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  let painted = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = parts.pop();
    for (const part of parts) take(JSON.parse(part.slice(6)));
    if (performance.now() - painted > 250) {
      painted = performance.now();
      draw();
    }
  }
  if (!["end", "error"].includes(run.events.at(-1)?.kind)) throw new Error("the stream ended early");
}

function take(event) {
  run.events.push(event);
  if (event.kind === "start") say(`Model ${event.model}, seed ${event.seed}, ${event.num_prompt} prompt tokens.`);
  if (event.kind === "error") {
    say("The run ended with an error.");
    tell(event.message);
  }
  if (event.kind === "round") round(event);
  if (event.kind === "end") end(event);
}

function round(event) {
  named(`text-${event.side}`).append(...event.tokens.map(token));
  if (event.side === "on") run.rounds.push(event);
  let at = event.begin;
  for (const part of ["draft", "verify", "other"]) {
    const side = event.side === "on" ? "with" : "without";
    run.rows.push({ side, part, round: event.round, start: at, end: at + event[part] });
    at += event[part];
  }
  run.numbers[`${event.side}_pass`] = event.tokens_a_pass;
  run.numbers[`${event.side}_speed`] = event.tokens_per_second;
  run.numbers.speedup = event.speedup;
}

function token(one) {
  const box = document.createElement("span");
  box.textContent = one.text;
  if (one.accepted) {
    if (!run.sources.includes(one.source)) run.sources.push(one.source);
    box.className = `drafted s${run.sources.indexOf(one.source) % 4}`;
    box.title = `drafted by ${one.source}`;
  }
  return box;
}

function end(event) {
  const texts = event.equal ? `Both texts are the same ${event.num_tokens} tokens` : `The texts part at token ${event.first_difference + 1}, where rounding decided between two near-equal tokens`;
  say(`${texts}: ${event.passes.on} passes with drafts, ${event.passes.off} without.`, event.equal);
  if (event.error) tell(event.error);
}

function draw(isNew = true) {
  show(named("live"), run.numbers);
  named("after").hidden = !run.rows.length;
  if (run.rows.length) plot(document.querySelector("#live [data-plot]"), run.rows.slice());
  const legend = run.sources.map((name, number) => {
    const box = document.createElement("span");
    box.className = `drafted s${number % 4}`;
    box.textContent = name;
    return box;
  });
  named("legend").replaceChildren("Drafted by: ", ...(legend.length ? legend.flatMap((box) => [box, " "]) : ["nobody yet"]), " (plain: the target's own)");
  named("which").max = Math.max(1, run.rounds.length);
  named("save").disabled = !run.events.length || stopper !== null;
  if (isNew) named("which").value = Math.max(1, run.rounds.length);
  drawTree(Number(named("which").value));
}

function drawTree(number) {
  const event = run?.rounds[number - 1];
  const words = document.createElement("p");
  if (!event) words.textContent = "No round yet.";
  else if (!event.nodes.length) words.textContent = `Round ${number}: nothing was drafted, the target wrote ${JSON.stringify(event.tokens[0].text)}.`;
  else words.textContent = `Round ${number}: ${event.nodes.length} draft tokens, ${event.tokens.length} emitted, the last by the target.`;
  named("live-tree").replaceChildren(words, ...(event?.nodes.length ? [tree(event.nodes, box)] : []));
}

function box(node) {
  const one = document.createElement("span");
  one.className = `node ${node.accepted ? "accept" : "reject"}`;
  one.textContent = JSON.stringify(node.text);
  one.title = `${node.source}, ${node.accepted ? "accepted" : "not accepted"}`;
  return one;
}

function busy(isOn) {
  named("go").disabled = isOn;
  named("stop").disabled = !isOn;
}

function say(words, good) {
  named("live-state").textContent = words;
  named("live-state").className = `verdict ${good === undefined ? "" : good ? "good" : "bad"}`;
}

function save() {
  const format = run.events[0]?.format;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ format, events: run.events })], { type: "application/json" }));
  link.download = "outrider-run.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

async function openTrace(event) {
  const file = event.target.files[0];
  event.target.value = "";
  if (!file || stopper) return;
  const answer = await ask("api/trace", { method: "POST", body: file });
  if (!answer) return;
  fresh();
  for (const one of (await answer.json()).events) take(one);
  draw();
}

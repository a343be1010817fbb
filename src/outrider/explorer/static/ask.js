// Asking the server: one place for answers, refusals and a server that is gone.

const box = document.getElementById("alert");

export function tell(message) {
  box.textContent = message;
  box.hidden = !message;
}

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") return null;
    tell("The server does not answer. Start it again with `outrider explore`, then change a setting.");
    return null;
  }
  if (answer.ok) {
    tell("");
    return answer;
  }
  let message = `the server answered with status ${answer.status}.`;
  try {
    message = (await answer.json()).error ?? message;
  } catch { /* the status alone has to do */ }
  tell(message.charAt(0).toUpperCase() + message.slice(1));
  return null;
}

// Asks with the newest values only: an older question that still waits is dropped.
export function latest() {
  let running = null;
  return async (path) => {
    running?.abort();
    running = new AbortController();
    const mine = running;
    const answer = await ask(path, { signal: mine.signal });
    if (answer === null || mine.signal.aborted) return null;
    try {
      const values = await answer.json();
      return mine.signal.aborted ? null : values;
    } catch {
      return null;
    }
  };
}

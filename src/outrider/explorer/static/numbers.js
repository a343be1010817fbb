// Numbers into the boxes that name them.

export function show(section, numbers) {
  for (const box of section.querySelectorAll("[data-number]")) {
    const value = numbers[box.dataset.number];
    box.textContent = value === null || value === undefined ? (box.dataset.none ?? "–") : Number(value).toFixed(box.dataset.digits);
  }
}

export function query(values) {
  return new URLSearchParams(values).toString();
}

"""The fixed texts on which the loss of weights of a few bits is measured: prose, talk, code, numbers, two languages."""

__all__ = ["TEXTS"]

TEXTS = (
    "The harbour lay quiet under the morning fog. Two boats had come in during the night, and "
    "the men who unloaded them spoke little. By nine the market was full, and the smell of "
    "salt and bread went up the narrow street to the church.",
    "Question: Why does ice float on water?\n"
    "Answer: Water expands when it freezes, because its molecules form an open lattice. The "
    "same mass takes more space, so ice is less dense than the water around it and floats.",
    "def moving_average(values, size):\n"
    "    total, averages = 0.0, []\n"
    "    for index, value in enumerate(values):\n"
    "        total += value\n"
    "        if index >= size:\n"
    "            total -= values[index - size]\n"
    "        averages.append(total / min(index + 1, size))\n    return averages\n",
    "A train leaves at 8:15 and travels 180 kilometres at 90 kilometres an hour. It arrives at "
    "10:15. If it had been twenty minutes late, it would have arrived at 10:35.",
    "Shopping list:\n"
    "- two litres of milk\n"
    "- a loaf of rye bread\n"
    "- six eggs\n- butter\n- apples, if they are cheap\n- coffee for the weekend\n",
    '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"], "known_for": '
    '{"notes": true, "engine": "analytical"}}',
    "Dear Ms Keller,\n"
    "\n"
    "thank you for your letter of 4 March. We have checked the invoice and found that the "
    "second item was charged twice. The amount will be returned to your account within ten "
    "days.\n\nYours sincerely,\nT. Brandt",
    "Der Zug hielt an einem kleinen Bahnhof, an dem niemand einstieg. Draussen regnete es, und "
    "im Abteil schlief ein Kind auf dem Schoss seiner Mutter.",
    "SELECT customer, SUM(amount) AS total FROM orders WHERE placed >= '2024-01-01' GROUP BY "
    "customer HAVING SUM(amount) > 100 ORDER BY total DESC;",
    "The committee agreed on three points: first, the old bridge will be closed in spring; "
    "second, buses will run every ten minutes; third, the cost will be shared between the city "
    "and the county.",
)

"""Make records of code edits whose outputs are given, as if a target had written them; no model runs.

    python benchmarks/given_outputs.py edit_eval.jsonl --output given.jsonl
    outrider replay given.jsonl -d ngram -d suffix -d prediction -d prediction+suffix --length 8

The file has one JSON object a line with the texts `instruction`, `input` and `output`. The prompt holds instruction and
input, the prediction is the input; only a tokenizer is read.
"""

import argparse
import json
from pathlib import Path

from outrider.engine.generate import encode_prediction, encode_prompt
from outrider.models.loading import load_model
from outrider.replay.records import Source, TextRecord


def main() -> None:
    """Read and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="smollm2", help="whose tokenizer and chat template are used")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    loaded = load_model(options.model)
    tokenizer = loaded.tokenizer
    source = Source(
        f"given, as {options.model} would write it",
        loaded.target.vocab_size,
        loaded.target.context_length,
        tokenizer=tokenizer.fingerprint,
    )
    lines = []
    for number, line in enumerate(options.file.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        prompt = encode_prompt(tokenizer, f"{row['instruction']}\n```python\n{row['input']}\n```")
        output = tuple(encode_prediction(tokenizer, row["output"]))
        prediction = tuple(encode_prediction(tokenizer, row["input"]))
        lines.append(
            TextRecord(
                str(number), "given", tuple(prompt), output, len(output), "length", source, prediction=prediction
            ).line()
        )
    options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

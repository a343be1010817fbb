"""All that a file says, for whoever counts tokens: its prompts with their answers, or the whole file.

Invariant: a file that holds no prompts is given as it stands, with its spaces and line ends.
"""

from pathlib import Path

from outrider.workloads.lines import read_text, suffix_of
from outrider.workloads.read import read_prompts

__all__ = ["read_texts"]


def read_texts(path: Path) -> list[str]:
    """The texts of a file.

    Args:
        path: prompts if it ends in `.json` or `.jsonl`, else any text; packed with gzip or not.

    Raises:
        InvalidRequestError: the file cannot be read, or its prompts are not understood.
    """
    if suffix_of(path) not in (".json", ".jsonl"):
        return [read_text(path)]
    texts: list[str] = []
    for item in read_prompts(path):
        texts += [message["content"] for message in item.messages]
        texts += [text for text in (item.prediction, item.expected) if text is not None]
    return texts

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import InvalidRequestError, UnsupportedError
from outrider.models.tokenizer.chat import ChatTemplate
from outrider.workloads import PromptItem, encode_item, encode_prediction, read_prompts, read_texts
from toy_text import make_tokenizer

TURNS = {"question_id": 81, "category": "writing", "turns": ["first", "second"]}
EDIT = {"task_id": "E/0", "instruction": "Sort it. ", "input": "a = 1\n", "output": "a = 2", "test": "assert a"}
FUNCTION = {"task_id": "H/0", "prompt": "def f():\n", "entry_point": "f", "canonical_solution": "    pass"}
BUG = {**FUNCTION, "declaration": "def f():\n", "buggy_solution": "    return 1", "canonical_solution": "    return 2"}
CALL = {
    "conversations": [
        {"from": "human", "value": "hi"},
        {"from": "function_call", "value": '{"name": "f"}'},
        {"from": "observation", "value": "3"},
        {"from": "gpt", "value": "it is 3"},
    ],
    "tools": '[{"name": "f", "parameters": {}}]',
}


def write(folder: Path, *records: Any, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def only(folder: Path, record: Any, **options: Any) -> PromptItem:
    (item,) = read_prompts(write(folder, record), **options)
    return item


@pytest.mark.parametrize(
    ("record", "kind", "name", "task", "said"),
    [
        (TURNS, "turns", "81", "mt_bench", "first"),
        ({**TURNS, "category": "rag"}, "turns", "81", "rag", "first"),
        (EDIT, "edit", "E/0", "edit", "Sort it.\n\n```python\na = 1\n```"),
        (FUNCTION, "function", "H/0", "code", "Complete this function and give the whole function."),
        (BUG, "bug fix", "H/0", "edit", "def f():\n    return 1"),
        (CALL, "tool calls", "1", "tool_call", "hi"),
        ({"messages": [{"role": "user", "content": "hello"}], "id": "a"}, "messages", "a", "text", "hello"),
        ({"prompt": "hello", "task": "chat", "key": 7}, "prompt", "7", "chat", "hello"),
        ({"question": "how?", "answer": "so"}, "question", "1", "math_reasoning", "how?"),
        ({"question": "how?", "context": "long ago"}, "question", "1", "qa", "long ago\n\nhow?"),
        ({"task_id": 11, "text": "write f", "code": "def f(): 0"}, "problem", "11", "code", "write f"),
    ],
)
def test_each_format_is_told_from_its_fields(
    tmp_path: Path, record: dict[str, Any], kind: str, name: str, task: str, said: str
) -> None:
    workload = read_prompts(write(tmp_path, record))
    (item,) = workload
    assert (workload.kind, item.id, item.task) == (kind, name, task)
    assert said in item.messages[-1]["content"]


def test_lines_of_text_are_prompts_in_any_packing(tmp_path: Path) -> None:
    plain = write(tmp_path, "one", "", "  two\u2028still two ", name="lines")
    packed = tmp_path / "lines.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [item.raw for item in read_prompts(packed)] == ["one", "two\u2028still two"]
    assert [item.id for item in read_prompts(plain)] == ["1", "3"]
    brackets = write(tmp_path, "[INST] hi", name="brackets.txt")
    assert [item.raw for item in read_prompts(brackets)] == ["[INST] hi"]


def test_a_json_list_is_read_like_lines(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([CALL, CALL], indent=1))
    assert [item.id for item in read_prompts(path)] == ["1", "2"]


def test_tool_calls_end_before_the_first_call(tmp_path: Path) -> None:
    item = only(tmp_path, CALL)
    assert [message["role"] for message in item.messages] == ["user"]
    assert (item.expected, item.category) == ('{"name": "f"}', "call")
    assert item.tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    without = {"conversations": [CALL["conversations"][0], CALL["conversations"][3]], "tools": "[]"}
    assert (only(tmp_path, without).expected, only(tmp_path, without).category) == ("it is 3", "answer")


def test_the_input_of_an_edit_is_a_prediction_on_request(tmp_path: Path) -> None:
    assert only(tmp_path, EDIT).prediction is None
    item = only(tmp_path, EDIT, predict_input=True)
    assert (item.prediction, item.expected) == ("a = 1\n", "a = 2")
    assert only(tmp_path, {"prompt": "p", "prediction": "q"}).prediction == "q"


def test_prompts_are_chosen_by_task_and_number(tmp_path: Path) -> None:
    kinds = ["qa", "rag", "qa", "writing", "qa"]
    records = [TURNS | {"question_id": number, "category": kind} for number, kind in enumerate(kinds)]
    path = write(tmp_path, *records)
    assert [item.id for item in read_prompts(path, task="qa", limit=2)] == ["0", "2"]
    assert [item.id for item in read_prompts(path, per_task=1)] == ["0", "1", "3"]
    assert read_prompts(path).tasks == ("qa", "rag", "mt_bench")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([TURNS, "{broken"], "prompts.jsonl, line 2 is not JSON"),
        ([TURNS, "[1]"], "prompts.jsonl, line 2 is [1]; give a JSON object"),
        ([TURNS, {"question_id": 2, "turns": ["x"]}], "prompts.jsonl, line 2 has no field 'category'"),
        ([TURNS, "", {**TURNS, "question_id": 2, "turns": []}], "prompts.jsonl, line 3 has turns=[]"),
        ([TURNS, TURNS], "prompts.jsonl, line 2 has the id '81' of prompts.jsonl, line 1"),
        ([{"prompt": "  "}], "prompts.jsonl, line 1 has prompt='  '"),
        ([{"prompt": 3}], "prompts.jsonl, line 1 has prompt=3"),
        ([{"size": 3}], "prompts.jsonl, line 1 has size; give records with one of prompt, messages"),
        ([{**CALL, "tools": "{"}], "prompts.jsonl, line 1 has tools='{'"),
        ([{**CALL, "conversations": [{"from": "me", "value": "x"}]}], "line 1 has the turn {'from': 'me'"),
        ([{"messages": [{"role": "user"}]}], "line 1 has the message {'role': 'user'}"),
        (["", " "], "is empty; give a file with at least one prompt"),
        (["no json"], "is not JSON; name it .txt"),
        (["[]"], "is an empty list"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, lines: list[Any], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_prompts(write(tmp_path, *lines))
    assert sentence in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsonl.gz"
    damaged.write_bytes(gzip.compress(b'{"prompt": "x"}')[:-6])
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (damaged, "damaged gzip file"),
        (binary, "not text in UTF-8"),
        (tmp_path, "cannot be read"),
        (tmp_path / "nothing", "does not exist"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            read_prompts(path)


def test_choices_without_a_prompt_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, TURNS)
    with pytest.raises(InvalidRequestError, match="no prompt of the task 'rag'; it has mt_bench"):
        read_prompts(path, task="rag")
    with pytest.raises(InvalidRequestError, match="per_task is 0"):
        read_prompts(path, per_task=0)


def test_items_become_tokens_with_their_tools(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(80)
    with pytest.raises(UnsupportedError, match="leave raw out"):
        encode_item(tokenizer, only(tmp_path, CALL), raw=True)
    body = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    for template in (body, "{{ tools | tojson }}" + body):
        tokenizer.chat_template = ChatTemplate({"default": template}, {})
        with_tools = tokenizer.decode(encode_item(tokenizer, only(tmp_path, CALL)))
        without = tokenizer.decode(encode_item(tokenizer, only(tmp_path, {**CALL, "tools": "[]"})))
        assert "function" in with_tools
        assert "function" not in without
    item = only(tmp_path, {"prompt": "hello", "prediction": "the end"})
    assert tokenizer.decode(encode_item(tokenizer, item, raw=True)) == "hello"
    assert tokenizer.decode(encode_prediction(tokenizer, item) or []) == "the end"
    assert encode_prediction(tokenizer, only(tmp_path, EDIT)) is None


def test_the_texts_of_a_file_are_its_prompts_with_their_answers_or_all_of_it(tmp_path: Path) -> None:
    assert read_texts(write(tmp_path, EDIT)) == ["Sort it.\n\n```python\na = 1\n```", "a = 2"]
    foretold = {"messages": [{"role": "user", "content": "q"}], "prediction": "p"}
    assert read_texts(write(tmp_path, foretold)) == ["q", "p"]
    packed = tmp_path / "code.py.gz"
    packed.write_bytes(gzip.compress(b"def f():\n    return {}\n"))
    assert read_texts(packed) == ["def f():\n    return {}\n"]

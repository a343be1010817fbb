"""Tokenizers: ids against the reference, text as it comes, chat templates, and whether two vocabularies agree."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from outrider.errors import DamagedModelError, InvalidRequestError, UnsupportedModelError
from outrider.models.tokenizer import ChatTemplate, SpecialTokens, Tokenizer, same_vocabulary
from outrider.models.tokenizer.folder import tokenizer_from_folder
from outrider.models.tokenizer.gguf import tokenizer_from_gguf

TEXTS = [
    "Hello, world! I'm here, WE'LL see, they'd don'T.",
    "def f(x):\n    return x**2 + 1  # squared\n\n\n\tdone",
    "naïve café 😀👩‍👩‍👧‍👦 ok",
    "1234567890 3.14159 1,000,000 and    12 x  7",
    "Größe, Straße und Übermut; fünfzig Äpfel.",
    "你好\uff0c世界\uff01今天天气很好。123",
    "   leading and   runs\t\ttabs \n \n  end   ",
    "<|im_start|>user\nhi<|im_end|>\n<think>no</think>",
    "e\u0301 cafe\u0301 \u212b ½ ² Ⅷ ١٢٣",
    "\r\n\r\nwin\r\n",
    "",
    "العربية हिन्दी ไทย \u200b\ufeff",
    "@@@###$$$%%% ==> != <= a_b-c",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def splitter(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def digits() -> Any:
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return pre_tokenizers.Sequence(steps)


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": digits,
    "llama-bpe": lambda: splitter(LLAMA3),
    "qwen2": lambda: splitter(QWEN2),
    "deepseek-r1-qwen": lambda: splitter(QWEN2),
}


def train(pre: str = "gpt-2", size: int = 420, texts: list[str] = TEXTS) -> Backend:
    """A byte-level tokenizer as models publish it, trained on the texts of this file."""
    backend = Backend(models.BPE(ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator(texts * 3, trainer)
    backend.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    return backend


def metadata(backend: Backend, pre: str, **changes: Any) -> dict[str, Any]:
    """The keys of a GGUF file that holds this tokenizer."""
    model = json.loads(backend.to_str())["model"]
    tokens = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    kinds = [3 if token in SPECIAL else 4 if token == "<think>" else 1 for token in tokens]
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*tokens, "[PAD998]", "[PAD999]"],
        "token_type": [*kinds, 5, 5],
        "merges": [" ".join(merge) for merge in model["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(train(), SpecialTokens(eos=2))


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_gguf_gives_the_ids_of_the_published_tokenizer(pre: str) -> None:
    backend = train(pre)
    ours = tokenizer_from_gguf(metadata(backend, pre, add_bos_token=False), Path("x.gguf"))
    rng = random.Random(pre)
    alphabet = "aB é世😀1 2\n\t'._<ß½"
    noise = ["".join(rng.choices(alphabet, k=40)) for _ in range(200)]
    for text in TEXTS + noise:
        ids = backend.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids, skip_special=False) == backend.decode(ids, skip_special_tokens=False)
    assert ours.special_ids == {0, 1, 2}
    assert len(ours.tokens) == backend.get_vocab_size()


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("special", [True, False])
def test_a_long_text_has_the_ids_of_the_library_too(pre: str, special: bool) -> None:
    backend = train(pre)
    backend.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[(SPECIAL[0], 0)])
    text = " ".join(TEXTS) * 100
    assert len(text) > 20_000
    ids = backend.encode(text, add_special_tokens=special).ids
    assert (ids[0] == 0) is special
    assert Tokenizer(backend, SpecialTokens(bos=0, eos=2)).encode(text, add_special=special) == ids


@pytest.mark.parametrize(
    ("pre", "flag", "starts"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_gguf_begins_texts_as_the_file_or_the_family_says(pre: str, flag: bool | None, starts: bool) -> None:
    ours = tokenizer_from_gguf(metadata(train(pre), pre, add_bos_token=flag), Path("x.gguf"))
    assert (ours.encode("Hello")[0] == 1) is starts
    assert ours.encode("<|im_start|>Hello").count(1) == 1
    assert ours.encode("Hello", add_special=False)[0] != 1


def test_gguf_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnsupportedModelError, match="pre-tokenizer 'novel'; supported are"):
        tokenizer_from_gguf(metadata(train(), "novel"), Path("x.gguf"))
    with pytest.raises(UnsupportedModelError, match="kind 't5'"):
        tokenizer_from_gguf(metadata(train(), "gpt-2", model="t5"), Path("x.gguf"))
    with pytest.raises(DamagedModelError, match=r"x\.gguf"):
        tokenizer_from_gguf(metadata(train(), "gpt-2", merges=None), Path("x.gguf"))
    with pytest.raises(DamagedModelError, match=r"x\.gguf"):
        tokenizer_from_gguf(metadata(train(), "gpt-2", merges=["zz qq"]), Path("x.gguf"))


def test_sentencepiece_vocabularies_go_through_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    import gguf

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    writer = gguf.GGUFWriter(tmp_path / "spm.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(9, -1, -1)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 10)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from outrider.models.loading.gguf_header import open_gguf_file

    ours = tokenizer_from_gguf(open_gguf_file(tmp_path / "spm.gguf").metadata, tmp_path / "spm.gguf")
    ids = ours.encode("hello é")
    assert ids[0] == 1
    assert tokens.index("▁hello") in ids
    assert ours.decode(ids) == "hello é"
    assert b"".join(ours.token_bytes(i) for i in ids[1:]) == " hello é".encode()
    stream = ours.stream()
    assert "".join(stream.push([i]) for i in ids) + stream.flush() == "hello é"


def blocks(ids: list[int], rng: random.Random) -> Iterator[list[int]]:
    """The ids in pieces of 1 to 5, as speculation gives them."""
    while ids:
        size = rng.randint(1, 5)
        yield ids[:size]
        ids = ids[size:]


@pytest.mark.parametrize("seed", range(5))
def test_streamed_text_is_the_decoded_text(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        stream = tokenizer.stream()
        pieces = [stream.push(block) for block in blocks(ids, rng)]
        assert not any("\ufffd" in piece for piece in pieces)
        assert "".join(pieces) + stream.flush() == tokenizer.decode(ids) == stream.text


def test_random_ids_stream_to_what_they_decode_to(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(len(tokenizer.tokens) + 20) for _ in range(30)]
        stream = tokenizer.stream()
        text = "".join(stream.push(block) for block in blocks(ids, rng)) + stream.flush()
        assert text == tokenizer.decode(ids)


def test_an_open_character_is_held_until_the_end(tokenizer: Tokenizer) -> None:
    ids = Tokenizer(train(texts=["plain"]), SpecialTokens()).encode("😀")
    plain = Tokenizer(train(texts=["plain"]), SpecialTokens())
    assert len(ids) == 4
    stream = plain.stream()
    assert [stream.push([i]) for i in ids] == ["", "", "", "😀"]
    stream = plain.stream()
    assert stream.push(ids[:2]) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_special_tokens_are_left_out_unless_asked_for(tokenizer: Tokenizer) -> None:
    ids = [1, *tokenizer.encode("hi"), 2]
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>hi<|im_end|>"
    stream = tokenizer.stream(skip_special=False)
    assert stream.push(ids) + stream.flush() == "<|im_start|>hi<|im_end|>"


def test_bytes_of_tokens(tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    assert tokenizer.token_bytes(10**6) == b""


TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "blocks": "{{ bos_token }}\n{%- for m in messages %}\n  {%- if loop.index > 2 %}{% break %}{% endif %}\n"
    "    {% generation %}{{ m.content | trim }}{% endgeneration %}\n{% endfor %}\nend{{ eos_token }}",
    "tools": "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ messages | tojson }}{{ flag is defined }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
}
MESSAGES = [
    {"role": "system", "content": 'be <brief> & "kind"'},
    {"role": "user", "content": " ü 😀\n"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "no"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d ü <", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": False}, {"tools": TOOLS}, {"flag": 1}])
def test_chat_templates_render_as_in_transformers(name: str, options: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train(), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    theirs.chat_template = TEMPLATES[name]
    variables = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    ours = Tokenizer(train(), SpecialTokens(), chat_template=ChatTemplate({"default": TEMPLATES[name]}, variables))
    wanted = {"add_generation_prompt": True} | options
    assert ours.render_chat(MESSAGES, **options) == theirs.apply_chat_template(MESSAGES, tokenize=False, **wanted)
    ids = theirs.apply_chat_template(MESSAGES, tokenize=True, return_dict=False, **wanted)
    assert ours.apply_chat(MESSAGES, **options) == ids


def test_a_refusing_template_is_the_callers_error() -> None:
    source = "{% if messages[0].role != 'user' %}{{ raise_exception('start with user') }}{% endif %}"
    template = ChatTemplate({"default": source}, {})
    assert template.render(MESSAGES[1:]) == ""
    with pytest.raises(InvalidRequestError, match="start with user"):
        template.render(MESSAGES)


def test_a_template_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate({"default": "{{ messages[0].content }} {{ name }}", "tool_use": "{{ tools | length }}"}, {})
    compiled: list[str] = []
    make = template._environment.from_string
    monkeypatch.setattr(template._environment, "from_string", lambda text: compiled.append(text) or make(text))
    asked = [{"role": "user", "content": "a"}]
    assert [template.render(asked, name=name) for name in "xyx"] == ["a x", "a y", "a x"]
    assert [template.render(asked, tools=[{}]) for _ in range(2)] == ["1", "1"]
    assert len(compiled) == 2


def test_templates_cannot_leave_the_sandbox() -> None:
    template = ChatTemplate({"default": "{{ messages.__class__.__mro__[1].__subclasses__() }}"}, {})
    with pytest.raises(InvalidRequestError):
        template.render(MESSAGES)


def test_without_a_template_messages_are_refused(tokenizer: Tokenizer) -> None:
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequestError, match=r"no chat template.*--raw"):
        tokenizer.apply_chat(MESSAGES)


def write_folder(path: Path, backend: Backend, **config: Any) -> Path:
    backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def test_folders_read_tokenizer_and_template(tmp_path: Path) -> None:
    backend = train()
    path = write_folder(tmp_path, backend, eos_token={"content": "<|im_end|>"}, chat_template=TEMPLATES["plain"])
    ours = tokenizer_from_folder(path)
    assert ours.special.eos == 2
    assert ours.encode(TEXTS[0]) == backend.encode(TEXTS[0]).ids
    assert ours.render_chat(MESSAGES[1:2], add_generation_prompt=False).startswith("<|im_start|>user")
    (path / "chat_template.jinja").write_text("from the file")
    assert tokenizer_from_folder(path).render_chat(MESSAGES) == "from the file"


def test_named_templates_choose_by_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    ours = tokenizer_from_folder(write_folder(tmp_path, train(), chat_template=named))
    assert (ours.render_chat(MESSAGES), ours.render_chat(MESSAGES, tools=TOOLS)) == ("plain", "with tools")


@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("flag", [None, True, False])
def test_folders_begin_texts_as_in_transformers(tmp_path: Path, post: bool, flag: bool | None) -> None:
    transformers = pytest.importorskip("transformers")
    backend = train()
    if post:
        template = {"single": "<|im_start|> $A", "pair": None, "special_tokens": [("<|im_start|>", 1)]}
        backend.post_processor = processors.TemplateProcessing(**template)
    config = {"bos_token": "<|im_start|>"} | ({} if flag is None else {"add_bos_token": flag})
    path = write_folder(tmp_path, backend, **config)
    ours, theirs = tokenizer_from_folder(path), transformers.PreTrainedTokenizerFast.from_pretrained(path)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        assert ours.encode(text, add_special=False) == theirs(text, add_special_tokens=False)["input_ids"]


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(DamagedModelError, match=r"no usable tokenizer.*tokenizer\.json"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DamagedModelError, match=r"tokenizer\.json cannot be read"):
        tokenizer_from_folder(tmp_path)


def rebuilt(change: Callable[[list[str]], list[str]], special: int = 3) -> Tokenizer:
    """A tokenizer whose vocabulary of 200 words was changed; the first ones are special."""
    words = change([f"word{i}" for i in range(200)])
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.add_special_tokens(words[:special])
    return Tokenizer(backend, SpecialTokens())


def test_equal_vocabularies_agree() -> None:
    shared = same_vocabulary(rebuilt(list), rebuilt(list))
    assert (shared.size, shared.different) == (200, ())


def test_padded_sizes_share_the_common_part() -> None:
    longer = rebuilt(lambda words: [*words, "extra1", "extra2"])
    assert same_vocabulary(rebuilt(list), longer).size == 200
    assert same_vocabulary(longer, rebuilt(list)).size == 200


def test_a_permuted_vocabulary_of_equal_size_is_refused() -> None:
    swapped = rebuilt(lambda words: [*words[:100], words[101], words[100], *words[102:]])
    with pytest.raises(UnsupportedModelError, match=r"2 ordinary tokens differ .*'word100'.*'word101'"):
        same_vocabulary(rebuilt(list), swapped)


def test_a_special_token_may_differ_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    other = rebuilt(lambda words: [words[0], "<other>", *words[2:]])
    assert same_vocabulary(rebuilt(list), other).different == (1,)
    assert "<other>" in caplog.text


def test_another_family_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="200 and 100 tokens"):
        same_vocabulary(rebuilt(list), rebuilt(lambda words: words[:100]))


def test_fingerprints_tell_vocabularies_apart() -> None:
    prints = {
        rebuilt(list).fingerprint,
        rebuilt(list).fingerprint,
        rebuilt(list, special=2).fingerprint,
        rebuilt(lambda words: words[::-1]).fingerprint,
    }
    assert len(prints) == 3


@pytest.mark.parametrize(("key", "value"), [("bos_token_id", 9999), ("eos_token_id", -1), ("padding_token_id", "x")])
def test_gguf_names_a_special_token_outside_the_vocabulary(key: str, value: Any) -> None:
    values = metadata(train(), "gpt-2", **{key: value}) | {"tokenizer.chat_template": "{{ bos_token }}"}
    with pytest.raises(DamagedModelError, match=rf"x\.gguf: tokenizer\.ggml\.{key} is {value!r}; .*fetch the file"):
        tokenizer_from_gguf(values, Path("x.gguf"))


def test_chat_templates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    train().save(str(tmp_path / "tokenizer.json"))
    for templates in (5, [5], [{"name": "default"}], [[]]):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
        with pytest.raises(DamagedModelError, match=r"tokenizer_config\.json .*chat_template"):
            tokenizer_from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(DamagedModelError, match=r"chat_template\.jinja is no UTF-8 text .*fetch the file"):
        tokenizer_from_folder(tmp_path)

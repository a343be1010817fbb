"""`docs/field-reports.md` has a row for every public report that was looked at, and the tests that it names exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THREADS = [
    "huggingface/transformers#30042",
    "huggingface/transformers#30413",
    "jaymody/speculative-sampling#3",
    "jaymody/speculative-sampling#9",
    "ml-explore/mlx-lm#1470",
    "ggml-org/llama.cpp#27407",
    "vllm-project/vllm#42517",
    "vllm-project/vllm#54506",
    "vllm-project/vllm#7627",
    "sgl-project/sglang PR 15360",
    "FasterDecoding/Medusa#99",
    "NVIDIA/TensorRT-LLM#1795",
    "NVIDIA/TensorRT-LLM#2208",
    "ml-explore/mlx-lm PR 1109",
    "vllm-project/vllm#8071",
    "mlc-ai/mlc-llm#2167",
    "vllm-project/vllm#5313",
    "ggml-org/llama.cpp#10174",
    "huggingface/transformers#32867",
    "huggingface/transformers PR 30778",
    "vllm-project/vllm PR 10198",
    "ohdearquant/lattice PR 974",
    "google-ai-edge/LiteRT-LM#3017",
    "vllm-project/vllm#42744",
    "vllm-project/vllm PR 42802",
    "vllm-project/vllm PR 38467",
    "apple/ml-recurrent-drafter#6",
    "xLLM-AI/xllm PR 2175",
    "ohdearquant/lattice PR 375",
    "duoan/TorchCode#16",
    "google-deepmind/gemma#562",
    "ggml-org/ggml#37",
    "Lightning-AI/litgpt#401",
    "OpenNMT/CTranslate2#1511",
    "huggingface/transformers PR 28508",
    "deepseek-ai/DeepSpec#31",
    "lablup/mlxcel#902",
    "openvinotoolkit/openvino.genai#4190",
    "vllm-project/vllm#7252",
    "vllm-project/vllm#5203",
    "vllm-project/vllm#10913",
    "huggingface/transformers#45307",
    "ggml-org/llama.cpp PR 3812",
    "LostRuins/koboldcpp#2325",
    "lmstudio-ai/lmstudio-bug-tracker#481",
    "huggingface/transformers PR 46936",
    "huggingface/transformers PR 46124",
    "vllm-project/vllm-ascend PR 16166",
    "SafeAILab/EAGLE#222",
    "huggingface/transformers#47912",
    "LostRuins/koboldcpp#1276",
    "microsoft/onnxruntime-genai PR 2491",
    "huggingface/transformers#48039",
    "huggingface/transformers PR 46993",
    "huggingface/transformers PR 47195",
    "sgl-project/sglang PR 23802",
    "ikawrakow/ik_llama.cpp PR 2358",
    "sgl-project/sglang#39826",
    "sgl-project/sglang PR 37450",
    "openvinotoolkit/openvino.genai PR 3293",
    "openvinotoolkit/openvino.genai PR 1951",
    "ml-explore/mlx-lm PR 1591",
    "gpustack/gpustack#1455",
    "ggml-org/llama.cpp#27972",
    "ggml-org/llama.cpp PR 27196",
    "vllm-project/vllm#17876",
    "sgl-project/sglang#10660",
    "sgl-project/sglang#17349",
    "Pushkinist/rMLX#542",
    "vllm-project/vllm#6967",
    "vllm-project/vllm#34497",
    "vllm-project/vllm PR 26060",
    "vllm-project/vllm#18902",
    "NVIDIA/TensorRT-LLM PR 17701",
    "mlx-node/mlx-node PR 11",
    "mattn/tensai PR 244",
    "sgl-project/sglang PR 33643",
    "vllm-project/vllm PR 31908",
    "vllm-project/vllm PR 29699",
    "sgl-project/sglang#26330",
    "vllm-project/vllm#39273",
    "huggingface/transformers#49036",
    "ml-explore/mlx-lm PR 1486",
    "Blaizzy/mlx-vlm#1144",
    "Blaizzy/mlx-vlm PR 1155",
    "vllm-project/vllm PR 5765",
    "vllm-project/vllm PR 9730",
    "ml-explore/mlx-lm#1446",
    "ml-explore/mlx-lm PR 1455",
    "ml-explore/mlx-swift-lm#424",
    "ml-explore/mlx-lm#1423",
    "ml-explore/mlx-lm PR 1427",
    "paiml/aprender PR 2014",
    "lablup/mlxcel#994",
    "lablup/mlxcel PR 1002",
    "ml-explore/mlx-swift-lm PR 173",
    "lmstudio-ai/lmstudio-bug-tracker#440",
    "huggingface/transformers PR 32370",
    "huggingface/transformers#32366",
    "huggingface/transformers PR 48000",
    "turboderp-org/exllamav2#274",
    "vllm-project/vllm#42533",
    "vllm-project/vllm#5342",
    "vllm-project/vllm#57941",
    "vllm-project/vllm#48894",
    "vllm-project/vllm PR 24662",
    "lmstudio-ai/lmstudio-bug-tracker#499",
    "sgl-project/sglang PR 25015",
    "dphnAI/sonar PR 1633",
    "NVIDIA/TensorRT-LLM#16826",
    "snowflakedb/ArcticInference#151",
    "vllm-project/vllm PR 53812",
    "vllm-project/vllm PR 50342",
    "vllm-project/vllm#14647",
    "vllm-project/vllm#33299",
    "vllm-project/vllm#14649",
    "sgl-project/sglang#5734",
    "vllm-project/vllm#6038",
    "vllm-project/vllm#13196",
    "NVIDIA/TensorRT-LLM PR 17599",
    "vllm-project/vllm#6137",
    "vllm-project/vllm PR 6138",
    "huggingface/transformers#29769",
    "huggingface/transformers#32165",
    "microsoft/onnxruntime-genai PR 2528",
    "sgl-project/sglang#39597",
    "sgl-project/sglang PR 13212",
    "lightseekorg/tokenspeed PR 1443",
    "1bit-MONSTER/1bit-MONSTER#95",
    "SafeAILab/EAGLE#191",
    "lmstudio-ai/lmstudio-bug-tracker#461",
    "vllm-project/vllm-ascend PR 6921",
    "vllm-project/vllm-ascend PR 6973",
    "vllm-project/vllm-ascend PR 7163",
    "vllm-project/vllm#6531",
    "vllm-project/vllm PR 50600",
    "openvinotoolkit/openvino.genai PR 3108",
    "xLLM-AI/xllm PR 1922",
    "noonghunna/club-3090#1096",
    "vllm-project/vllm#7047",
    "vllm-project/vllm#14742",
    "spiritbuun/buun-llama-cpp PR 74",
    "huggingface/transformers PR 27775",
    "ml-explore/mlx-lm PR 1297",
    "PaddlePaddle/FastDeploy PR 7774",
    "vllm-project/vllm#16016",
    "sgl-project/sglang#1504",
    "vllm-project/vllm PR 25784",
    "ggml-org/llama.cpp#19231",
    "ggml-org/llama.cpp PR 21815",
    "ggml-org/llama.cpp#10547",
    "ggml-org/llama.cpp#13963",
    "vllm-project/vllm#40875",
    "sgl-project/sglang PR 18984",
    "sgl-project/sglang PR 14536",
    "sgl-project/sglang PR 18760",
    "vllm-project/vllm#9428",
    "vllm-project/vllm#2475",
    "torch-spyre/sendnn-inference#36",
    "vllm-project/vllm#39146",
    "vllm-project/vllm#41190",
    "vllm-project/vllm PR 49620",
    "tenstorrent/vllm-tt-plugin PR 131",
    "sgl-project/sglang PR 2730",
    "huggingface/text-generation-inference#1411",
    "vllm-project/vllm#9441",
    "noonghunna/club-3090#758",
    "vllm-project/vllm PR 26198",
    "InternLM/lmdeploy#4883",
    "ggml-org/llama.cpp#23268",
    "vllm-project/vllm PR 42722",
    "vllm-project/vllm PR 41834",
    "vllm-project/vllm#47087",
    "sgl-project/sglang#32459",
    "vllm-project/vllm#40624",
    "vllm-project/vllm#54360",
    "vllm-project/vllm#53670",
    "sgl-project/sglang PR 26329",
    "RBLN-SW/vllm-rbln PR 554",
    "Blaizzy/mlx-vlm#1715",
    "ml-explore/mlx-examples PR 1155",
    "sgl-project/sglang PR 17338",
    "sgl-project/sglang#16964",
    "ggml-org/llama.cpp PR 28232",
    "ggml-org/llama.cpp#28049",
    "vllm-project/vllm#9995",
    "vllm-project/vllm PR 14067",
    "vllm-project/vllm#8073",
    "mlc-ai/mlc-llm#1827",
    "Blaizzy/mlx-vlm#1775",
    "a-ghorbani/pocketpal-ai#850",
    "huggingface/transformers PR 31401",
    "vllm-project/vllm#4872",
    "vllm-project/vllm PR 21068",
    "vllm-project/vllm PR 11966",
    "vllm-project/vllm#20284",
    "predibase/lorax PR 570",
    "vllm-project/vllm PR 15506",
    "ggml-org/llama.cpp PR 27692",
    "sgl-project/sglang#4351",
    "huggingface/text-generation-inference#2997",
    "vllm-project/vllm#43820",
    "vllm-project/vllm-ascend#14453",
    "ggml-org/llama.cpp PR 22881",
]
NAMED_TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")


def rows() -> dict[str, tuple[str, str]]:
    """Thread -> what went wrong, and the test or reason."""
    found = {}
    for line in (ROOT / "docs" / "field-reports.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 3 and "/" in cells[0]:
            assert cells[0] not in found, f"{cells[0]} has two rows"
            found[cells[0]] = (cells[1], cells[2])
    return found


@cache
def functions(path: str) -> frozenset[str]:
    """Names of the functions of a test file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("thread", THREADS)
def test_a_report_has_a_test_or_a_reason(thread: str) -> None:
    wrong, answer = rows()[thread]
    assert len(wrong) > 20, "say what went wrong"
    named = NAMED_TEST.findall(answer)
    assert answer.count("::") == len(named)
    for path, function in named:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        assert function in functions(path), f"{path} has no {function}"
    assert named or len(answer) > 40, "name a test, or say why there is none"


def test_no_row_is_about_a_thread_that_nobody_asked_for() -> None:
    assert list(rows()) == THREADS


def test_threads_are_written_so_that_they_can_be_found() -> None:
    for thread in THREADS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(#\d+| PR \d+)", thread)

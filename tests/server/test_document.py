"""The document of the interface: what it says holds, and answers fit OpenAI's own document where one is given."""

import json
import os
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from server_helpers import CHAT, MODEL, Live, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
OPENAI_DOCUMENT = os.environ.get("OUTRIDER_OPENAI_DOCUMENT")


def test_the_document_is_whole(live: Live) -> None:
    document = live.http().get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/drafters/reset",
        "/health",
        "/ready",
        "/metrics",
    }
    assert "422" not in json.dumps(document)
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "prediction", "speculation", "logit_bias", "stream"} <= set(fields)


def test_generated_requests_get_what_the_document_says() -> None:
    with serving(max_output_tokens=4, max_choices=4, max_waiting=64) as live:
        schema = schemathesis.openapi.from_url(f"{live.url}/openapi.json")
        for operation in schema.get_all_operations():
            _try(operation.ok())


def _try(operation: Any) -> None:
    @settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, timeout=60)

    ask()


def schema_of(name: str) -> dict[str, Any]:
    """One schema of OpenAI's document with all that it refers to."""
    assert OPENAI_DOCUMENT is not None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(Path(OPENAI_DOCUMENT).read_text(encoding="utf-8"), loader)
    schemas = {"components": {"schemas": _nullable(document["components"]["schemas"])}}
    return {"$ref": f"#/components/schemas/{name}"} | schemas


def _nullable(schema: Any) -> Any:
    """The older spelling of "or null" in the newer one."""
    if isinstance(schema, list):
        return [_nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: _nullable(part) for name, part in schema.items()}
    return {"anyOf": [changed, {"type": "null"}]} if schema.get("nullable") is True else changed


@pytest.mark.slow
@pytest.mark.skipif(OPENAI_DOCUMENT is None, reason="OUTRIDER_OPENAI_DOCUMENT names OpenAI's document (openapi.yaml)")
def test_answers_fit_openai_s_document(live: Live) -> None:
    http: httpx.Client = live.http()
    chat = {"model": MODEL, "messages": CHAT, "max_tokens": 8, "n": 2}
    variants: list[dict[str, Any]] = [
        {},
        {"logprobs": True, "top_logprobs": 2},
        {"prediction": {"type": "content", "content": "the cat"}},
        {"speculation": {"statistics": True, "provenance": True}},
    ]
    whole, part = schema_of("CreateChatCompletionResponse"), schema_of("CreateChatCompletionStreamResponse")
    text = schema_of("CreateCompletionResponse")
    for more in variants:
        jsonschema.validate(http.post("/v1/chat/completions", json=chat | more).json(), whole)
        for event in events(http, "/v1/chat/completions", chat | more):
            jsonschema.validate(event, part)
    for more in ({}, {"logprobs": 2}, {"echo": True}):
        body = {"model": MODEL, "prompt": "the cat", "max_tokens": 8} | more
        jsonschema.validate(http.post("/v1/completions", json=body).json(), text)
    jsonschema.validate(http.get("/v1/models").json(), schema_of("ListModelsResponse"))
    error = http.post("/v1/chat/completions", json={"model": "x", "messages": CHAT}).json()
    jsonschema.validate(error, schema_of("ErrorResponse"))


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    answer = http.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]

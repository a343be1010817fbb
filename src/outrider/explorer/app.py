"""The explorer as a web application: static files, four views, plots from the installed packages.

This module knows HTTP and ranges of values; every number is asked of the other modules. Invariants: nothing is served
that would make the page ask another machine; a bad value becomes one sentence with status 400.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.gzip import GZipMiddleware

from outrider.analysis.simulate import read_widths
from outrider.core.params import Rule
from outrider.errors import InvalidRequestError, OutriderError
from outrider.explorer.charts import specifications
from outrider.explorer.exactness import exactness, faults_of, make_toy
from outrider.explorer.live import Live, Run
from outrider.explorer.steps import round_in_steps
from outrider.explorer.theory import LENGTHS, theory
from outrider.explorer.traces import read_trace

__all__ = ["create_app", "javascript_bundle"]

_SAFE = {
    # vega turns its expressions into functions, hence unsafe-eval; everything comes from this server
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_MOST_TRACE_BYTES = 32_000_000

Rate = Annotated[float, Query(ge=0, le=1)]
Seed = Annotated[int, Query(ge=0, lt=2**31)]
_Widths = Annotated[str, Query(max_length=64)]


class LiveRun(BaseModel):
    """What the live view asks; anything else is refused."""

    model_config = ConfigDict(extra="forbid")

    prompt: str = Field(min_length=1, max_length=20_000)
    max_tokens: int = Field(96, ge=1, le=1024)
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int | None = Field(None, ge=0, lt=2**31)
    drafter: str = Field("ngram", min_length=1, max_length=400)
    length: int = Field(6, ge=1, le=16)
    width: int = Field(1, ge=1, le=4)


def create_app(live: Live) -> FastAPI:
    """The application.

    Args:
        live: runs the live view.
    """
    app = FastAPI(title="outrider explore", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(GZipMiddleware, minimum_size=2000)
    _refuse_in_one_sentence(app)
    _serve_numbers(app)
    _serve_live(app, live)
    _serve_plots(app)
    app.mount("/", StaticFiles(directory=str(files("outrider.explorer") / "static"), html=True))
    return app


@cache
def javascript_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as the installed package ships them."""
    import vl_convert

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # its types lack the default


def _serve_numbers(app: FastAPI) -> None:
    """The views that are pure maths."""

    @app.get("/api/theory")
    def _theory(
        alpha: Rate = 0.8,
        gamma: Annotated[int, Query(ge=0, le=LENGTHS)] = 4,
        c: Annotated[float, Query(ge=0, le=2)] = 0.05,
        ridge: Annotated[int, Query(ge=0, le=256)] = 0,
        batch: Annotated[int, Query(ge=1, le=64)] = 1,
    ) -> dict[str, Any]:
        return theory(alpha, gamma, c, ridge, batch)

    @app.get("/api/exactness")
    def _exactness(
        rule: Rule = Rule.TOKEN,
        mismatch: Rate = 0.5,
        widths: _Widths = "1,1,1,1",
        rounds: Annotated[int, Query(ge=1, le=40_000)] = 4000,
        seed: Seed = 0,
        fault: Annotated[str, Query(max_length=80)] = "",
    ) -> dict[str, Any]:
        return exactness(make_toy(rule, mismatch, read_widths(widths), fault), rounds, seed)

    @app.get("/api/round")
    def _round(
        rule: Rule = Rule.TOKEN,
        mismatch: Rate = 0.5,
        widths: _Widths = "1,1,1,1",
        number: Annotated[int, Query(ge=0, lt=100_000)] = 0,
        seed: Seed = 0,
    ) -> dict[str, Any]:
        return round_in_steps(make_toy(rule, mismatch, read_widths(widths)), number, seed)

    @app.get("/api/choices")
    def _choices() -> dict[str, Any]:
        return {rule.value: [fault.name for fault in faults_of(rule)] for rule in Rule if rule.is_exact}


def _serve_live(app: FastAPI, live: Live) -> None:
    """The view of a real model, and its saved runs."""

    @app.get("/api/model")
    def _model() -> dict[str, Any]:
        return {"name": live.name}

    @app.post("/api/live")
    def _run(asked: LiveRun) -> StreamingResponse:
        events = live.run(Run(**asked.model_dump()))
        return StreamingResponse(_lines(events), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @app.post("/api/trace")
    async def _trace(request: Request) -> dict[str, Any]:
        if int(request.headers.get("content-length", "0") or 0) > _MOST_TRACE_BYTES:
            raise InvalidRequestError(f"the file is larger than {_MOST_TRACE_BYTES // 10**6} MB; no trace is so long.")
        return {"events": read_trace(await request.body())}


def _serve_plots(app: FastAPI) -> None:
    """The plots, and the code that draws them."""

    @app.get("/api/charts")
    def _charts() -> dict[str, Any]:
        return specifications()

    @app.get("/vega.js")
    def _vega() -> Response:
        headers = {"Cache-Control": "max-age=86400"}
        return Response(javascript_bundle(), media_type="text/javascript", headers=headers)

    threading.Thread(target=javascript_bundle, daemon=True).start()  # it takes a second to put together


def _lines(events: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Events as server-sent events."""
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"


def _refuse_in_one_sentence(app: FastAPI) -> None:
    """Make every refusal one sentence, and every answer safe."""

    @app.exception_handler(OutriderError)
    async def _mistake(_: Request, error: OutriderError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=400)

    @app.exception_handler(RequestValidationError)
    async def _misfit(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"error": _sentence(error.errors()[0])}, status_code=400)

    @app.middleware("http")
    async def _headers(request: Request, call_next: Any) -> Any:
        answer = await call_next(request)
        answer.headers.update(_SAFE)
        return answer


def _sentence(problem: Mapping[str, Any]) -> str:
    """What is wrong with one value."""
    message = str(problem["msg"])
    if problem["type"] == "json_invalid":
        return "the request is no JSON; reload the page."
    return f"{problem['loc'][-1]} is {problem.get('input')!r:.60}: {message[:1].lower()}{message[1:]}."

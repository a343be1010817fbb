"""The plots of the explorer and of `outrider simulate` and `plan`, as Vega-Lite specifications without data.

This module knows altair and the names of columns; it knows no formula. Invariant: data comes by name, so that a plot is
sent once and only its rows change.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

__all__ = ["CHARTS", "filled", "specifications"]

Rows = Sequence[Mapping[str, Any]]
_WIDE = {"width": "container", "height": 240}


def _chart(data: str, *, title: str) -> Any:
    import altair as alt

    return alt.Chart(alt.NamedData(name=data), title=title).properties(**_WIDE)


def _lengths() -> Any:
    """Speed-up by draft length; the chosen and the best length are marked."""
    import altair as alt

    base = _chart("lengths", title="Speed-up by draft length").encode(
        x=alt.X("length:Q", title="draft tokens a pass", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("speedup:Q", title="speed-up", scale=alt.Scale(zero=True)),
        tooltip=["length:Q", alt.Tooltip("speedup:Q", format=".3f"), alt.Tooltip("tokens:Q", format=".3f")],
    )
    marks = base.transform_filter("datum.mark != ''").mark_point(size=140, filled=True)
    shown = marks.encode(color=alt.Color("mark:N", title=None), shape=alt.Shape("mark:N", title=None))
    return base.mark_line(point=True) + shown


def _tokens() -> Any:
    """Tokens a pass by draft length, and what they would be if all were accepted."""
    import altair as alt

    return (
        _chart("tokens", title="Tokens a pass by draft length")
        .mark_line(point=True)
        .encode(
            x=alt.X("length:Q", title="draft tokens a pass", axis=alt.Axis(tickMinStep=1)),
            y=alt.Y("tokens:Q", title="tokens a pass"),
            color=alt.Color("kind:N", title=None),
            strokeDash=alt.StrokeDash("kind:N", title=None),
        )
    )


def _rates() -> Any:
    """Speed-up by acceptance, of the chosen length and of the best one."""
    import altair as alt

    return (
        _chart("rates", title="Speed-up by acceptance rate")
        .mark_line()
        .encode(
            x=alt.X("acceptance:Q", title="acceptance rate", scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("speedup:Q", title="speed-up"),
            color=alt.Color("kind:N", title=None),
            strokeDash=alt.StrokeDash("kind:N", title=None),
        )
    )


def _costs() -> Any:
    """What a pass costs by its rows."""
    import altair as alt

    return (
        _chart("costs", title="Cost of a pass by its rows, in plain passes")
        .mark_line()
        .encode(x=alt.X("rows:Q", title="rows"), y=alt.Y("cost:Q", title="cost", scale=alt.Scale(zero=True)))
    )


def _batches() -> Any:
    """Best speed-up by requests in a pass."""
    import altair as alt

    return (
        _chart("batches", title="Best speed-up by requests that share a pass")
        .mark_line(point=True)
        .encode(
            x=alt.X("batch:Q", title="requests in a pass", scale=alt.Scale(type="log", base=2)),
            y=alt.Y("speedup:Q", title="speed-up", scale=alt.Scale(zero=True)),
            tooltip=["batch:Q", alt.Tooltip("speedup:Q", format=".3f"), "length:Q"],
        )
    )


def _laws() -> Any:
    """The target's law, the draft's, and what was emitted with its sampling error."""
    import altair as alt

    base = _chart("laws", title="What was emitted beside the target's law").encode(
        x=alt.X("token:N", title="token", axis=alt.Axis(labelAngle=0)), xOffset=alt.XOffset("kind:N", sort=_KINDS)
    )
    bars = base.mark_bar().encode(
        y=alt.Y("probability:Q", title="probability"),
        color=alt.Color("kind:N", title=None, sort=_KINDS),
        tooltip=["token:N", "kind:N", alt.Tooltip("probability:Q", format=".4f")],
    )
    errors = base.mark_rule(strokeWidth=2).encode(y=alt.Y("low:Q", title="probability"), y2=alt.Y2("high"))
    return bars + errors


_KINDS = ["target", "emitted", "draft"]


def _accepted() -> Any:
    """How many draft tokens were accepted in a round, beside the closed form."""
    import altair as alt

    base = _chart("accepted", title="Accepted draft tokens a round").encode(
        x=alt.X("accepted:O", title="accepted draft tokens", axis=alt.Axis(labelAngle=0)),
        tooltip=["accepted:O", alt.Tooltip("measured:Q", format=".4f"), alt.Tooltip("expected:Q", format=".4f")],
    )
    counted = alt.ColorDatum("counted", scale=alt.Scale(domain=["counted", "by the formula"]), title=None)
    bars = base.mark_bar().encode(y=alt.Y("measured:Q", title="share of rounds"), color=counted)
    ticks = base.mark_tick(thickness=4, opacity=1).encode(y=alt.Y("expected:Q"), color=alt.ColorDatum("by the formula"))
    return bars + ticks


def _step() -> Any:
    """The laws that matter at one step of a round."""
    import altair as alt

    return (
        _chart("step", title="The laws at this step")
        .mark_bar()
        .encode(
            x=alt.X("token:N", title="token", axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("kind:N", sort=_AT_STEP),
            y=alt.Y("probability:Q", title="probability"),
            color=alt.Color("kind:N", title=None, sort=_AT_STEP, scale=alt.Scale(domain=_AT_STEP)),
            tooltip=["token:N", "kind:N", alt.Tooltip("probability:Q", format=".4f")],
        )
    )


_AT_STEP = ["target p", "draft q", "drawn from"]


def _coin() -> Any:
    """The chance of a yes beside a no, and where the coin fell."""
    import altair as alt

    base = _chart("coin", title="The coin (the mark): accepted where it falls below the chance")
    bars = base.mark_bar(height=22).encode(
        x=alt.X("from:Q", title="coin", scale=alt.Scale(domain=[0, 1])),
        x2=alt.X2("to"),
        color=alt.Color("answer:N", title=None, sort=None),
        tooltip=["answer:N", alt.Tooltip("from:Q", format=".3f"), alt.Tooltip("to:Q", format=".3f")],
    )
    fell = base.mark_tick(thickness=4, height=44, orient="vertical", opacity=1).encode(
        x="coin:Q", tooltip=alt.Tooltip("coin:Q", format=".3f")
    )
    return (bars + fell).properties(height=50)


def _timeline() -> Any:
    """Where the time of each round went, speculation above plain decoding."""
    import altair as alt

    return (
        _chart("timeline", title="Where the time went, in seconds of each side's own clock")
        .mark_bar(height=18)
        .encode(
            x=alt.X("start:Q", title="seconds"),
            x2=alt.X2("end"),
            y=alt.Y("side:N", title=None),
            color=alt.Color("part:N", title=None, scale=alt.Scale(domain=["verify", "draft", "other"])),
            tooltip=["side:N", "part:N", "round:Q"],
        )
        .properties(height=90)
    )


CHARTS = {
    "lengths": _lengths,
    "tokens": _tokens,
    "rates": _rates,
    "costs": _costs,
    "batches": _batches,
    "laws": _laws,
    "accepted": _accepted,
    "step": _step,
    "coin": _coin,
    "timeline": _timeline,
}
"""Name of a plot, which is the name of its data -> the function that makes it."""


@cache
def specifications() -> dict[str, dict[str, Any]]:
    """Every plot by its name."""
    return {name: _titled(make().to_dict(validate=False)) for name, make in CHARTS.items()}


def _titled(specification: dict[str, Any]) -> dict[str, Any]:
    """The same with its title above all layers."""
    titles = [layer.pop("title") for layer in specification.get("layer", ())]
    return specification | {"title": titles[0]} if titles else specification


def filled(name: str, rows: Rows) -> dict[str, Any]:
    """One plot with its rows in it, for a file that stands alone."""
    known = specifications()[name]
    left = {key: value for key, value in known.items() if key not in ("$schema", "config", "data")}
    return left | {"data": {"values": [dict(row) for row in rows]}, "width": 640}

"""The plots of a benchmark, as Vega-Lite specifications.

This module knows summaries and altair; it knows no page. Invariant: a plot shows stored figures only.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.bench.arms import OFF
from outrider.bench.load import curve
from outrider.bench.rounds import Round
from outrider.bench.runs import seconds_per_token

__all__ = ["charts"]


def charts(document: Mapping[str, Any], rounds: Sequence[Round]) -> list[tuple[str, dict[str, Any]]]:
    """Titles and specifications of all plots that have something to show."""
    rows = [row | {"name": _name(row)} for row in document["summary"]]
    made = {
        "Speed-up of decoding by task; bars are 95 % intervals over prompts, 1 is plain decoding": _speedups(rows),
        "Each prompt: tokens a second with and without speculation": _prompts(rounds),
        "Share of draft tokens accepted at each place, of those that were tried": _positions(
            rows, "acceptance_rate_at"
        ),
        "Share of drafts that were right up to each place": _positions(rows, "accepted_share_at"),
        "Where the decode time goes, milliseconds a token": _parts(rows),
        "Cost of a target pass by rows, milliseconds": _widths(document["provenance"].get("passes", [])),
        "Tokens a second by requests at once": _loads(document["loads"]),
    }
    whole = {title: chart.configure_legend(labelLimit=600) for title, chart in made.items() if chart is not None}
    return [(title, chart.to_dict()) for title, chart in whole.items()]


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['kind']}, T={row['temperature']:g}"


def _chart(values: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    return alt.Chart(alt.InlineData(values=list(values)))


def _speedups(rows: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    known = [row for row in rows if row["speedup"] is not None]
    if not known:
        return None
    shown = ("name", "task", "speedup", "speedup_low", "speedup_high")
    base = _chart([{key: row[key] for key in shown} for row in known]).encode(
        y=alt.Y("task:N", title=None), yOffset="name:N", color=alt.Color("name:N", title=None)
    )
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("speedup_low:Q"), x2=alt.X2(field="speedup_high"))
    scale = alt.Scale(zero=False)
    points = base.mark_point(filled=True, size=70).encode(x=alt.X("speedup:Q", title="speed-up", scale=scale))
    one = _chart([{"speedup": 1}]).mark_rule(strokeDash=[4, 4]).encode(x="speedup:Q")
    return bars + points + one


def _prompts(rounds: Sequence[Round]) -> Any:
    import altair as alt

    values: list[dict[str, Any]] = []
    for measured in rounds:
        off = seconds_per_token([measured.runs[OFF]])
        for kind, run in measured.runs.items():
            on = seconds_per_token([run])
            if kind != OFF and off and on:
                name = f"{kind}, T={measured.temperature:g}"
                more = {"prompt": measured.prompt, "task": measured.task}
                values.append({"name": name, "off": 1 / off, "on": 1 / on, **more})
    if not values:
        return None
    points = (
        _chart(values)
        .mark_circle(size=50, opacity=0.7)
        .encode(
            x=alt.X("off:Q", title="tokens a second without", scale=alt.Scale(zero=False)),
            y=alt.Y("on:Q", title="tokens a second with"),
            color=alt.Color("name:N", title=None),
            tooltip=["prompt:N", "task:N", "off:Q", "on:Q"],
        )
    )
    ends = [min(value["off"] for value in values), max(value["off"] for value in values)]
    even = _chart([{"off": end, "on": end} for end in ends]).mark_line(strokeDash=[4, 4], color="gray")
    return points + even.encode(x="off:Q", y="on:Q")


def _positions(rows: Sequence[Mapping[str, Any]], metric: str) -> Any:
    import altair as alt

    overall: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        overall.setdefault(row["name"], row)
    values = [
        {"name": name, "place": place + 1, "share": share}
        for name, row in overall.items()
        for place, share in enumerate(row.get(metric) or ())
    ]
    if not values:
        return None
    return (
        _chart(values)
        .mark_line(point=True)
        .encode(
            x=alt.X("place:O", title="place in the draft"),
            y=alt.Y("share:Q", title=None, scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("name:N", title=None),
        )
    )


def _parts(rows: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    values = []
    for row in rows:
        for side in ("off", "on"):
            per_token, whole = row[f"seconds_per_token_{side}"], row[f"decode_seconds_{side}"]
            for part in ("draft", "verify", "other"):
                seconds = row[f"{part}_seconds_{side}"]
                if seconds is not None and per_token:
                    share = {"part": part, "milliseconds": 1000 * per_token * seconds / whole}
                    values.append({"bar": f"{row['name']} · {row['task']} · {side}", **share})
    if not values:
        return None
    return (
        _chart(values)
        .mark_bar()
        .encode(
            x=alt.X("milliseconds:Q", title="milliseconds a token"),
            y=alt.Y("bar:N", title=None, sort=None, axis=alt.Axis(labelLimit=400)),
            color=alt.Color("part:N", title=None, sort=["draft", "verify", "other"]),
        )
    )


def _widths(passes: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    if not passes:
        return None
    values = [{"rows": cost["width"], "milliseconds": 1000 * cost["seconds"]} for cost in passes]
    return (
        _chart(values)
        .mark_line(point=True)
        .encode(x=alt.X("rows:Q", title="rows"), y=alt.Y("milliseconds:Q", title=None))
    )


def _loads(loads: Sequence[Mapping[str, Any]]) -> Any:
    import altair as alt

    values = []
    for point in curve(loads):
        name = f"{point['kind']}, T={point['temperature']:g}"
        values.append({"name": name, "at once": point["concurrency"], "speed": point["tokens_per_second_on"]})
        plain = f"{OFF}, T={point['temperature']:g}"
        values.append({"name": plain, "at once": point["concurrency"], "speed": point["tokens_per_second_off"]})
    if not values:
        return None
    return (
        _chart(values)
        .mark_line(point=True)
        .encode(
            x=alt.X("at once:Q", title="requests at once"),
            y=alt.Y("speed:Q", title="tokens a second"),
            color=alt.Color("name:N", title=None),
        )
    )

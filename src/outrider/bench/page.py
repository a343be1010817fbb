"""A benchmark as one HTML file that needs nothing from any network: figures, plots, and what they were measured on.

This module knows summaries and markup. Invariant: everything that comes from prompts, names or servers is escaped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.bench.charts import charts
from outrider.bench.rounds import Round
from outrider.bench.table import sentences

__all__ = ["render_page"]

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>outrider bench: {{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c1c1c; }
h2 { font-size: 1.05rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff; }
[id^="plot-"] { max-width: 100%; overflow-x: auto; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .8rem; }
</style>
<script>{{ bundle }}</script>
</head>
<body>
<h1>outrider bench: {{ title }}</h1>
{% for sentence in sentences %}<p>{{ sentence }}.</p>
{% endfor %}
{% for title, _ in plots %}<h2>{{ title }}</h2>
<div id="plot-{{ loop.index }}"></div>
{% endfor %}
<h2>All figures</h2>
<div class="wide"><table>
{% for line in lines %}<tr>{% for cell in line %}{% if loop.first %}<th>{{ cell }}</th>
{% else %}<td>{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</table></div>
<h2>Settings</h2>
<pre>{{ settings }}</pre>
<h2>Measured on</h2>
<pre>{{ provenance }}</pre>
<script>
{% for _, plot in plots %}vegaEmbed("#plot-{{ loop.index }}", {{ plot | tojson }}, {"actions": false});
{% endfor %}</script>
</body>
</html>
"""


def render_page(document: Mapping[str, Any], rounds: Sequence[Round]) -> str:
    """The page of one run.

    Args:
        document: what `run.json` holds.
        rounds: its rounds.
    """
    import json

    import vl_convert
    from jinja2 import Environment
    from markupsafe import Markup

    rows = document["summary"]
    return (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            title=document["settings"]["model"],
            bundle=Markup(vl_convert.javascript_bundle()),  # type: ignore[call-arg]  # its types lack the default
            sentences=[text[:1].upper() + text[1:] for text in sentences(document)],
            plots=charts(document, rounds),
            lines=_lines(rows),
            settings=json.dumps(document["settings"], indent=2, ensure_ascii=False),
            provenance=json.dumps(document["provenance"], indent=2, ensure_ascii=False),
        )
    )


def _lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The summary turned on its side: a line for each metric."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [[name, *(_cell(row.get(name)) for row in rows)] for name in names]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return " ".join(map(_cell, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(part)}" for name, part in value.items())
    return str(value)

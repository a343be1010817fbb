"""The certificate as a document and as one page that needs nothing from any network: verdict first.

This module knows answers and markup. Invariant: everything that comes from prompts, names or files is escaped.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.bench.certify import FIRST_TOKENS, SIZE, Ledger
from outrider.bench.verdict import claims, verdict
from outrider.core.params import Rule
from outrider.errors import InvalidRequestError

__all__ = ["make_document", "render", "write"]

_NOT_CHECKED = (
    "numbers beyond float64 rounding in the enumeration, and vocabularies of more than 4 tokens there: the rules treat "
    "tokens alike, but that is an argument and no check",
    "laws of texts longer than the first tokens, where only sampling could tell",
    "other machines, thread counts, builds, weights, drafters and settings than the ones named here",
    "the target itself: the certificate says that speculation leaves its text alone, not that the text is good",
)

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>outrider certificate: {{ d.settings.model }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1c1c; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
.verdict { font-size: 1.15rem; padding: .8rem 1rem; border-left: .4rem solid {{ colour }}; background: #f6f6f6; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .25rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
summary { font-size: 1.05rem; font-weight: bold; margin-top: 1.2rem; cursor: pointer; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .8rem; }
</style>
</head>
<body>
<h1>Certificate of losslessness</h1>
<p class="verdict">{{ d.verdict }}</p>
<p>Rule {{ d.settings.rule }}, drafters {{ d.settings.drafters | join(", ") }}, {% if d.settings.tree %}trees of
{{ d.settings.tree }}{% else %}chains{% endif %}, target {{ d.settings.model }},
temperature {{ d.settings.sampling.temperature }}; {{ d.provenance.date }}.</p>
<h2>What was checked</h2>
<div class="wide"><table><tr><th>claim</th><th>status</th><th>figures</th></tr>
{% for claim in d.claims %}<tr><td>{{ claim.text }}</td><td>{{ claim.status }}</td><td>{{ claim.detail }}</td></tr>
{% endfor %}</table></div>
<h2>What was not checked</h2>
<ul>{% for line in d.not_checked %}<li>{{ line }}</li>{% endfor %}</ul>
{% if d.law %}<h2>First tokens against the exact law</h2>
<p>Pearson's chi-square over pooled cells of the first {{ d.first_tokens }} tokens; an exact engine fails somewhere with
probability {{ d.size }}.</p>
<div class="wide"><table><tr><th>prefix</th><th>texts</th><th>cells</th><th>chi-square</th><th>p-value</th>
<th>smallest visible total variation</th><th>accepted of drafted</th></tr>
{% for name, a in d.law.items() %}<tr><td>{{ name }}</td><td>{{ a.samples }}</td><td>{{ a.cells }}</td>
<td>{{ "%.1f" | format(a.statistic) }}</td><td>{{ "%.3g" | format(a.p_value) }}</td>
<td>{{ "%.3f" | format(a.smallest_difference) }} (power {{ a.power }})</td>
<td>{{ a.accepted }} of {{ a.drafted }}</td></tr>
{% endfor %}</table></div>{% endif %}
{% if d.logits %}<h2>Logits of verify passes against passes of one row</h2>
<p>Largest difference over the rows of each text.</p>
<div class="wide"><table><tr><th>prompt</th>{% for kind in kinds %}<th>{{ kind }}</th>{% endfor %}</tr>
{% for name, a in d.logits.items() %}<tr><td>{{ name }}</td>{% for kind in kinds %}<td>
{%- if kind in a %}{{ "%.3g" | format(a[kind]) }}{% else %}-{% endif %}</td>{% endfor %}</tr>
{% endfor %}</table></div>{% endif %}
{% if d.runs %}<h2>Prompts</h2>
<div class="wide"><table><tr><th>prompt</th><th>seed</th><th>tokens</th><th>passes</th><th>accepted of drafted</th>
<th>first difference</th><th>top-2 margin there</th></tr>
{% for run in d.runs %}<tr><td>{{ run.prompt }}</td><td>{{ run.seed }}</td><td>{{ run.num_tokens }}</td>
<td>{{ run.passes }}</td><td>{{ run.accepted }} of {{ run.drafted }}</td>
<td>{% if not d.has_paths %}not compared{% elif run.divergence %}{{ run.divergence.place }}{% else %}none{% endif %}
</td>
<td>{% if d.has_paths and run.divergence %}{{ "%.3g" | format(run.divergence.margin) }}{% else %}-{% endif %}</td></tr>
{% endfor %}</table></div>{% endif %}
<h2>Planted faults</h2>
<div class="wide"><table><tr><th>fault</th><th>known from</th><th>seen by</th><th>bias</th></tr>
{% for name, a in d.faults.items() %}<tr><td>{{ name }}</td><td>{{ a.known }}</td><td>{{ a.check or "nothing" }}</td>
<td>{% if a.difference is none %}{{ "a coin is asked twice" if a.check else "-" }}{% else %}{{ "%.3g" |
format(a.difference) }}{% endif %}</td></tr>
{% endfor %}</table></div>
<details><summary>Enumerations of the rule: {{ d.enumerations | length }}</summary>
<div class="wide"><table><tr><th>enumeration</th><th>largest difference</th></tr>
{% for name, a in d.enumerations.items() %}<tr><td>{{ name }}</td><td>{{ "%.2g" | format(a.difference) }}</td></tr>
{% endfor %}</table></div></details>
<details><summary>Settings, with the hashes of all files</summary><pre>{{ settings }}</pre></details>
<details><summary>Made with</summary><pre>{{ provenance }}</pre></details>
</body>
</html>
"""


def make_document(ledger: Ledger, rule: Rule, *, is_complete: bool) -> dict[str, Any]:
    """The certificate, ready for JSON."""
    settings = ledger.settings
    facts = {name: settings[name] for name in ("is_invariant", "is_greedy")}
    found = claims(ledger.parts, rule, facts | {"temperature": settings["sampling"]["temperature"]})
    is_lossless, sentence = verdict(found, rule, is_complete=is_complete)
    skipped = [f"prompt {name}: {reason}" for name, reason in ledger.skipped.items()]
    return {
        "format": 1,
        "kind": "certificate",
        "is_complete": is_complete,
        "is_lossless": is_lossless,
        "verdict": sentence,
        "claims": [claim.as_dict() for claim in found],
        "not_checked": [
            *(f"{c.text}: {c.detail}" for c in found if c.status == "not checked"),
            *skipped,
            *_NOT_CHECKED,
        ],
        "settings": settings,
        "provenance": ledger.provenance,
        "first_tokens": FIRST_TOKENS,
        "size": SIZE,
        "has_paths": rule is Rule.MATCH or (rule.is_exact and settings["is_greedy"]),
        "enumerations": ledger.parts["rule"],
        "faults": ledger.parts["fault"],
        "runs": [run for group in ledger.parts["paths"].values() for run in group],
        "logits": ledger.parts["logits"],
        "law": ledger.parts["law"],
    }


def render(document: Mapping[str, Any]) -> str:
    """The page of a certificate."""
    from jinja2 import Environment

    colours = {True: "#2e7d32", False: "#c62828", None: "#9e9e9e"}
    shown = {name: json.dumps(document[name], indent=2, ensure_ascii=False) for name in ("settings", "provenance")}
    page = Environment(autoescape=True).from_string(_PAGE)
    kinds = list(dict.fromkeys(kind for answer in document["logits"].values() for kind in answer))
    return page.render(d=document, kinds=kinds, colour=colours[document["is_lossless"]], **shown)


def write(document: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write certificate.json and certificate.html; gives both paths.

    Raises:
        InvalidRequestError: the folder cannot be written.
    """
    data, page = folder / "certificate.json", folder / "certificate.html"
    try:
        data.write_text(json.dumps(document, indent=2, ensure_ascii=False), encoding="utf-8")
        page.write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(
            f"--out {folder} cannot be used ({error.strerror}); give a folder that can be written."
        ) from error
    return data, page

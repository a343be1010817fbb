"""`outrider simulate`: rounds of the real rules on a toy vocabulary, beside the closed forms."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.console import print_rows
from outrider.cli.options import Json, print_json

if TYPE_CHECKING:
    from outrider.analysis.expected import Expected
    from outrider.analysis.simulate import Rounds, Toy

__all__ = ["command"]


def command(
    rule: Annotated[
        str | None, typer.Option(help="match, token, block, traversal or typical; left out, every rule in turn.")
    ] = None,
    mismatch: Annotated[float, typer.Option(help="How far the draft's law is from the target's: 0 to 1.")] = 0.5,
    length: Annotated[int, typer.Option(min=1, max=16, metavar="<int>", help="Draft tokens a pass: a chain.")] = 4,
    widths: Annotated[
        str | None, typer.Option(help="A tree instead: children of a node at each depth, such as 2,2,1.")
    ] = None,
    draw: Annotated[
        str | None,
        typer.Option(
            help="deterministic, shared_noise, iid, without_replacement or top_plus_sample; default: the rule's own."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, metavar="<int>", help="Rounds of each rule.")] = 4000,
    seed: Annotated[int, typer.Option(help="Same seed, same rounds.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="<file>", help="Also write a plot: .html, .svg or .png.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge drafts with the real rules on eight tokens: acceptance and tokens a pass against the formulas.

    The last column tells whether what was emitted is still the target's law, whatever the draft is.
    """
    from outrider.analysis.simulate import read_widths

    shape = (1,) * length if widths is None else read_widths(widths)
    toys = _toys(rule, mismatch, shape, draw)
    rows = [_measure(toy, rounds, seed) for toy in toys]
    if plot is not None:
        _draw(plot, rows)
    if as_json:
        print_json({"mismatch": mismatch, "widths": list(shape), "seed": seed, "rules": [_plain(row) for row in rows]})
    else:
        _print(rows)


def _toys(rule: str | None, mismatch: float, shape: tuple[int, ...], draw: str | None) -> "list[Toy]":
    from outrider.analysis.simulate import Toy, toy_laws
    from outrider.core.fit import default_draw
    from outrider.core.params import Draw, Rule
    from outrider.errors import InvalidRequestError

    rules = {one.value: one for one in Rule}
    draws = {one.name.lower(): one for one in Draw}
    if rule is not None and rule not in rules:
        raise InvalidRequestError(f"--rule is {rule!r}; choose one of {', '.join(rules)}.")
    if draw is not None and draw not in draws:
        raise InvalidRequestError(f"--draw is {draw!r}; choose one of {', '.join(draws)}.")
    is_tree = max(shape) > 1
    chosen = [rules[rule]] if rule else [one for one in Rule if not (is_tree and one is Rule.BLOCK)]
    p, q = toy_laws(mismatch)
    kinds = [default_draw(one, is_tree=is_tree) if draw is None else draws[draw] for one in chosen]
    return [Toy(p, q, one, kind, shape) for one, kind in zip(chosen, kinds, strict=True)]


def _measure(toy: "Toy", rounds: int, seed: int) -> dict[str, Any]:
    from outrider.analysis.agreement import compare_laws
    from outrider.analysis.expected import expected_pass
    from outrider.analysis.simulate import simulate

    measured = simulate(toy, rounds, seed)
    expected = expected_pass(toy.p, toy.q, toy.rule, toy.draw, toy.widths)
    agreement = compare_laws(measured.emitted, toy.p)
    return _figures(toy, measured, expected) | {
        "distance": agreement.distance,
        "p_value": agreement.p_value,
        "keeps_the_law": agreement.matches,
        "toy": toy,
        "measured": measured,
        "expected": expected,
    }


def _figures(toy: "Toy", measured: "Rounds", expected: "Expected | None") -> dict[str, Any]:
    return {
        "rule": toy.rule.value,
        "is_exact": toy.rule.is_exact,
        "draw": toy.draw.name.lower(),
        "rounds": len(measured.lengths),
        "acceptance_rate": measured.acceptance_rate,
        "acceptance_rate_expected": None if expected is None else expected.acceptance_rate,
        "tokens_a_pass": measured.tokens_a_pass,
        "tokens_a_pass_expected": None if expected is None else expected.tokens,
        "accepted_lengths": measured.histogram,
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The part of a row that JSON knows."""
    return {name: value for name, value in row.items() if name not in ("toy", "measured", "expected")}


def _print(rows: list[dict[str, Any]]) -> None:
    head = ("rule", "draw", "acceptance", "formula", "tokens a pass", "formula", "off the law by", "the target's law?")
    lines = [head]
    for row in rows:
        shown = [f"{row[name]:.3f}" if row[name] is not None else "-" for name in _NUMBERS]
        kept = ("yes" if row["keeps_the_law"] else "no") + ("" if row["is_exact"] else ", approximate")
        lines.append((row["rule"], row["draw"], *shown, f"{row['distance']:.4f}", kept))
    print_rows(lines, right=range(2, 7))


_NUMBERS = ("acceptance_rate", "acceptance_rate_expected", "tokens_a_pass", "tokens_a_pass_expected")


def _draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """The emitted tokens of each rule beside the laws."""
    from outrider.cli.plotting import write_plots
    from outrider.explorer.exactness import law_rows

    write_plots(
        path,
        [("laws", law_rows(row["toy"], row["measured"]), f"rule {row['rule']}, draw {row['draw']}") for row in rows],
    )

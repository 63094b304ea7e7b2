"""--sweep: a demo run silently with each value of a knob, and its summary rows as one table."""

import itertools
from dataclasses import replace

import console
from command_line import knobs_of, refuse, settings
from console import Column
from export import SILENT
from language import _, translated


def run_sweep(options):
    """A table per chosen demo that has the knobs swept: a row per value, or a grid for two knobs."""
    names = list(options.sweeps)
    demos = [demo for demo in options.demos if set(names) <= set(knobs_of(demo))]
    if len(names) > 2:
        refuse(_("--sweep is given for {n} knobs; one or two can be swept at once.").format(n=len(names)))
    if not demos:
        refuse(_("No demo has both {first} and {second}.").format(first=names[0], second=names[-1]))
    for demo in demos:
        points = list(itertools.product(*options.sweeps.values()))
        runs = {point: one_run(demo, options.given | dict(zip(names, point, strict=True))) for point in points}
        knobs = next(iter(runs.values()))[1].knobs
        console.record.knobs = {name: value for name, value in knobs.items() if name not in names}
        title = translated((demo.__doc__ or demo.__name__).splitlines()[0]).rstrip(".\u3002")
        console.print_header(_("{title}, by {knobs}").format(title=title, knobs=" x ".join(names)))
        table = as_rows if len(names) == 1 else as_grid
        table(names, runs)
        console.print_observations([at(names, point, claim) for point, (_summary, one) in runs.items()
                                    for claim in claims(one) if not claim.holds])  # fmt: skip


def one_run(demo, given):
    """(summary, what was recorded) of one silent run."""
    shown, record = console.renderer, console.record
    console.renderer, console.record = SILENT, console.Record()
    try:
        knobs = settings(demo, given)
        console.record.knobs = {name: value for name, value in knobs.items() if not isinstance(value, bool)}
        summary = demo(**knobs)
        return summary or {}, console.record.demos[-1]
    finally:
        console.renderer, console.record = shown, record


def as_rows(names, runs):
    """A row per value: the demo's summary, and how many of its sentences hold."""
    columns = list(next(iter(runs.values()))[0])
    rows = {}
    for (value,), (summary, recorded) in runs.items():
        held = [claim.holds for claim in claims(recorded)]
        rows[value] = (value, *summary.values(), f"{sum(held)}/{len(held)}")
    console.print_table([Column(names[0], ""), *columns, _("sentences")], rows, key="sweep")


def as_grid(names, runs):
    """The first figure of the summary, by both knobs."""
    figure = next(iter(next(iter(runs.values()))[0]), _("sentences that hold"))
    figure = figure if isinstance(figure, Column) else Column(figure)
    across = list(dict.fromkeys(second for _first, second in runs))
    rows: dict = {}
    for (first, _second), (summary, recorded) in runs.items():
        value = next(iter(summary.values()), sum(claim.holds for claim in claims(recorded)))
        rows.setdefault(first, [first]).append(value)
    headers = [f"{names[0]} \\ {names[1]}", *(Column(f"{value}", figure.format) for value in across)]
    console.print_observations([_("In the table: {figure}").format(figure=figure.title)])
    console.print_table(headers, rows, key="sweep")


def at(names, point, claim):
    """A claim with the values it is about in front."""
    values = ", ".join(f"{name}={value}" for name, value in zip(names, point, strict=True))
    return replace(claim, text=_("{values}: {sentence}").format(values=values, sentence=claim.text))


def claims(recorded):
    return [item for item in recorded.observations if isinstance(item, console.Claim)]

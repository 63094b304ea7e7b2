"""Runs a script's demos: the command line, the check, and clean endings.

    lesson(demo0_by_hand, demo1_three_ways)

A demo is a function named demoN_name whose keyword defaults are its knobs. What it returns, if anything, is its summary
row for a sweep: {Column(title, format): value}.
"""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import console
from command_line import help_text, read_command_line, refuse, settings
from knobs import KNOBS
from language import _, language

NOTHING_KEPT = SimpleNamespace(compared=lambda _name: nullcontext(), keep=lambda: None)


def lesson(*demos):
    """Run the demos the command line asks for, in order.

    Ends with status 2 and one sentence for bad input, and with 1 when `--check` finds a false identity, or a false
    finding while every knob is at its default.
    """
    try:
        options = read_command_line(sys.argv[1:], demos)
        if options.help:
            console.renderer.pairs(help_text(demos))
            return
        if options.json:
            from export import SILENT, as_json

            shown, console.renderer = console.renderer, SILENT
        if options.sweeps:
            from sweep import run_sweep

            run_sweep(options)
        else:
            run(options)
        if options.json:
            shown.verbatim(as_json(console.record, Path(sys.argv[0]).name, language))
        if options.check:
            report_check(at_defaults=not set(options.given) - {"more"} and not options.sweeps)
    except KeyboardInterrupt:
        sys.stderr.write("\n" + _("Stopped.") + "\n")
        raise SystemExit(130) from None


def run(options):
    """Run the chosen demos; all their knobs are checked before the first begins."""
    ready = [(demo, settings(demo, options.given)) for demo in options.demos]
    last = last_run(options)
    for demo, knobs in ready:
        console.record.knobs = shown_knobs(knobs)
        with last.compared(demo.__name__):
            demo(**knobs)
    last.keep()


def last_run(options):
    """What the demos are compared with and kept in; nothing, where no student reads them."""
    if options.json or options.check:
        return NOTHING_KEPT
    from changes import LastRun

    return LastRun(sys.argv[0], options.fresh)


def shown_knobs(knobs):
    """The knobs a header shows: those that set a quantity."""
    return {name: value for name, value in knobs.items() if KNOBS[name].kind is not bool}


def require(holds, text, /, **numbers):
    """For checks across knobs, at a demo's top: end with this sentence and status 2 unless it holds."""
    if not holds:
        refuse(text.format(**numbers))


def report_check(at_defaults):
    """Say how many sentences held; end with status 1 if one that must hold does not."""
    claims = console.record.claims()
    broken = [claim for claim in claims if not claim.holds and (at_defaults or claim.kind == "identity")]
    held = sum(claim.holds for claim in claims)
    console.renderer.lines(["", _("{held} of {total} sentences hold.").format(held=held, total=len(claims))])
    console.renderer.lines([_("FAIL: {sentence}").format(sentence=claim.text) for claim in broken])
    if broken:
        raise SystemExit(1)

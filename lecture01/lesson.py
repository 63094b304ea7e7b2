"""Runs a script's demos: knobs from the command line, which demos, the check, and clean endings.

    lesson(demo0_by_hand, demo1_three_ways)

A demo is a function named demoN_name whose keyword defaults are its knobs.
"""

import inspect
import sys

import console
from knobs import KNOBS, nearest
from language import _

FLAGS = {"--help": "-h", "--check": None, "--demo": None}


def lesson(*demos):
    """Run the demos the command line asks for, in order.

    Ends with status 2 and one sentence for bad input, and with 1 when `--check` finds a false identity, or a false
    finding while every knob is at its default.
    """
    try:
        chosen, given, check = read_command_line(sys.argv[1:], demos)
        calls = [(demo, settings(demo, given)) for demo in chosen]
        for demo, knobs in calls:
            console.record.knobs = {name: value for name, value in knobs.items() if KNOBS[name].kind is not bool}
            demo(**knobs)
        if check:
            report_check(at_defaults=not set(given) - {"more"})
    except KeyboardInterrupt:
        sys.stderr.write("\n" + _("Stopped.") + "\n")
        raise SystemExit(130) from None


def require(holds, text, /, **numbers):
    """For checks across knobs, at a demo's top: end with this sentence and status 2 unless it holds."""
    if not holds:
        refuse(text.format(**numbers))


def refuse(sentence):
    sys.stdout.flush()
    sys.stderr.write(sentence + "\n")
    raise SystemExit(2)


def knobs_of(demo):
    """The demo's knobs and their defaults, from its signature."""
    return {name: parameter.default for name, parameter in inspect.signature(demo).parameters.items()}


def settings(demo, given):
    """The demo's knobs with the given values in, each checked: edited defaults as well as flags."""
    knobs = {name: given.get(name, default) for name, default in knobs_of(demo).items()}
    for name, value in knobs.items():
        problem = KNOBS[name].problem(value)
        if problem:
            where = flag(name) if name in given else _("{knob} in {demo}").format(knob=name, demo=demo.__name__)
            text = _("{where} is {value!r}; it has to be {problem}.")
            refuse(text.format(where=where, value=value, problem=problem))
    return knobs


def read_command_line(arguments, demos):
    """(demos to run, {knob: value} given, whether to check). Prints the help and ends for --help."""
    known = {flag(name): name for demo in demos for name in knobs_of(demo)}
    chosen, given, check = demos, {}, False
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("-h", "--help"):
            sys.stdout.write(help_text(demos))
            raise SystemExit(0)
        if name == "--check" and not equals:
            check = True
        elif word in known and KNOBS[known[word]].kind is bool:
            given[known[word]] = True
        elif name == "--demo" or (name in known and KNOBS[known[name]].kind is not bool):
            value = value if equals else next(words, None)
            if value is None:
                text = _("{flag} needs a value, such as {flag} {example}.")
                refuse(text.format(flag=name, example=example(name, known)))
            if name == "--demo":
                chosen = choose(value, demos)
            else:
                given[known[name]] = KNOBS[known[name]].parse(value)
        else:
            hint = nearest(name, [*known, *FLAGS])
            refuse(_("{word} is not a flag of this script.{hint} --help lists them.").format(word=word, hint=hint))
    unused = [flag(name) for name in given if not any(name in knobs_of(demo) for demo in chosen)]
    if unused:
        refuse(_("{flag} changes nothing in the demos chosen with --demo.").format(flag=unused[0]))
    return chosen, given, check


def choose(text, demos):
    """The demos named in "1,3" or by their names, in the script's order."""
    by_name = {}
    for demo in demos:
        number, _underscore, name = demo.__name__.removeprefix("demo").partition("_")
        by_name[number] = by_name[name] = demo
    wanted = text.split(",")
    for word in wanted:
        if word not in by_name:
            allowed = ", ".join(name for name in by_name if name.isdigit())
            problem = _("--demo is {text}; it has to be one or more of {allowed}, such as --demo 1,2.")
            refuse(problem.format(text=text, allowed=allowed))
    return [demo for demo in demos if demo in [by_name[word] for word in wanted]]


def example(name, known):
    return "1" if name == "--demo" else KNOBS[known[name]].example


def flag(knob):
    return "--" + knob.replace("_", "-")


def help_text(demos):
    """What --help prints: the script's first paragraph, its demos, and its knobs with their ranges."""
    module = inspect.getmodule(demos[0])
    lines = [(inspect.getdoc(module) or "").split("\n\n")[0], "", _("Demos (--demo 1, --demo 1,2; all by default):")]
    for demo in demos:
        number, _underscore, name = demo.__name__.removeprefix("demo").partition("_")
        lines.append(f"  {number}  {(inspect.getdoc(demo) or name).splitlines()[0]}")
    lines += ["", _("Knobs (flags here, or defaults to edit in the file):")]
    for name in dict.fromkeys(name for demo in demos for name in knobs_of(demo)):
        knob = KNOBS[name]
        if knob.kind is bool:
            lines.append(f"  {flag(name):<14} {knob.help}")
            continue
        defaults = ", ".join(dict.fromkeys(str(knobs_of(demo)[name]) for demo in demos if name in knobs_of(demo)))
        span = _("{low:,} to {high:,}; here {defaults}").format(low=knob.low, high=knob.high, defaults=defaults)
        lines.append(f"  {flag(name):<14} {knob.help} ({span})")
    lines += ["", f"  {'--check':<14} " + _("exit with 1 if a sentence that must hold does not")]
    lines += [f"  {'--help':<14} " + _("this text")]
    return "\n".join(lines) + "\n"


def report_check(at_defaults):
    """Say how many claims held; end with status 1 if one that must hold does not."""
    claims = console.record.claims()
    broken = [claim for claim in claims if not claim.holds and (at_defaults or claim.kind == "identity")]
    held = sum(claim.holds for claim in claims)
    console.renderer.lines(["", _("{held} of {total} sentences hold.").format(held=held, total=len(claims))])
    for claim in broken:
        console.renderer.lines(["FAIL: " + claim.text])
    if broken:
        raise SystemExit(1)

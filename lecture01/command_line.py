"""What a script's command line says: demos, knobs, and what to do with them; one sentence for what it cannot mean."""

import inspect
import sys
from dataclasses import dataclass, field

from knobs import KNOBS, Knob
from language import LANGUAGES, _, translated

WITH_VALUE = {"--demo": "1", "--sweep": "block=32,64,256", "--lang": "zh"}
WITHOUT_VALUE = ("--check", "--json", "--fresh", "--help", "-h")


@dataclass
class Options:
    """demos to run; given {knob: value}; sweeps {knob: values}; and the flags."""

    demos: list
    given: dict = field(default_factory=dict)
    sweeps: dict = field(default_factory=dict)
    check: bool = False
    json: bool = False
    fresh: bool = False
    help: bool = False


def refuse(sentence):
    """End with this sentence and status 2."""
    sys.stdout.flush()
    sys.stderr.write(sentence + "\n")
    raise SystemExit(2)


def knobs_of(demo):
    """The demo's knobs and their defaults, from its signature."""
    return {name: parameter.default for name, parameter in inspect.signature(demo).parameters.items()}


def knob(name, demo):
    """The Knob of that name; one sentence where a demo has a knob that is not in the table."""
    if name not in KNOBS:
        text = _("{demo} has a knob {knob} that is not in lecture01/knobs.py.{hint} Rename it, or add a line there.")
        refuse(text.format(demo=demo.__name__, knob=name, hint=nearest(name, KNOBS)))
    return KNOBS[name]


def settings(demo, given):
    """The demo's knobs with the given values in, each checked: edited defaults as well as flags."""
    knobs = {name: given.get(name, default) for name, default in knobs_of(demo).items()}
    for name, value in knobs.items():
        in_file = _("{knob} in {demo}").format(knob=name, demo=demo.__name__)
        check_value(knob(name, demo), value, flag(name) if name in given else in_file)
    return knobs


def check_value(knob: Knob, value, where):
    problem = knob.problem(value)
    if problem:
        text = _("{where} is {value!r}; it has to be {problem}.")
        refuse(text.format(where=where, value=value, problem=problem))


def read_command_line(arguments, demos):
    """The Options, each checked as far as it stands alone."""
    known = {flag(name): name for demo in demos for name in knobs_of(demo)}
    kinds = {flag(name): knob(name, demo).kind for demo in demos for name in knobs_of(demo)}
    switches = {word: name for word, name in known.items() if kinds[word] is bool}
    options = Options([])
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word in switches:
            options.given[switches[word]] = True
        elif word in WITHOUT_VALUE:
            setattr(options, {"-h": "help"}.get(word, word.lstrip("-")), True)
        elif name in WITH_VALUE or (name in known and name not in switches):
            value = value if equals else next(words, None)
            if value is None:
                text = _("{flag} needs a value, such as {flag} {example}.")
                refuse(text.format(flag=name, example=WITH_VALUE.get(name) or KNOBS[known[name]].example))
            take(options, name, value, known, demos)
        else:
            hint = nearest(name, [*known, *WITH_VALUE, *WITHOUT_VALUE])
            refuse(_("{word} is not a flag of this script.{hint} --help lists them.").format(word=word, hint=hint))
    options.demos = [demo for demo in demos if demo in options.demos or not options.demos]
    used = {name for demo in options.demos for name in knobs_of(demo)}
    for name in [*options.given, *options.sweeps]:
        if name not in used and KNOBS[name].kind is not bool:
            refuse(_("{flag} changes nothing in the demos chosen with --demo.").format(flag=flag(name)))
    return options


def take(options, name, value, known, demos):
    """Put a flag with a value into the options."""
    if name == "--demo":
        options.demos += choose(value, demos)
    elif name == "--sweep":
        options.sweeps.update([sweep_of(value, known)])
    elif name in known:
        options.given[known[name]] = KNOBS[known[name]].parse(value)


def choose(text, demos):
    """The demos named in "1,3" or by their names, in the script's order."""
    by_name = {}
    for demo in demos:
        number, name = number_and_name(demo)
        by_name[number] = by_name[name] = demo
    wanted = text.split(",")
    for word in wanted:
        if word not in by_name:
            problem = _("--demo is {text!r}; it has to be one or more of {allowed}, such as --demo 1,2.")
            refuse(problem.format(text=text, allowed=", ".join(number_and_name(demo)[0] for demo in demos)))
    return [demo for demo in demos if demo in [by_name[word] for word in wanted]]


def sweep_of(text, known):
    """(knob, values) of "block=32,64,256"; each value checked like a flag's."""
    name, _equals, values = text.partition("=")
    word = flag(name)
    if word not in known or KNOBS[known[word]].kind is bool or not values:
        problem = _("--sweep is {text!r}; it has to name a knob and its values.{hint} Try --sweep {example}.")
        hint = nearest(word, known) if word not in known else ""
        refuse(problem.format(text=text, hint=hint, example=WITH_VALUE["--sweep"]))
    parsed = [KNOBS[known[word]].parse(value) for value in values.split(",")]
    for value in parsed:
        check_value(KNOBS[known[word]], value, word)
    return known[word], list(dict.fromkeys(parsed))


def number_and_name(demo):
    """("1", "three_ways") of demo1_three_ways."""
    number, _underscore, name = demo.__name__.removeprefix("demo").partition("_")
    return number, name


def flag(name):
    """--seq-len of seq_len."""
    return "--" + name.replace("_", "-")


def nearest(word, words):
    """' Did you mean X?' for the closest of `words`, or nothing."""
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(word, words, 1)
    return _(" Did you mean {word}?").format(word=close[0]) if close else ""


def help_text(demos):
    """What --help prints, as (lead, text) pairs: the question, the demos, the knobs with their ranges."""
    module = inspect.getmodule(demos[0])
    pairs = [("", translated((inspect.getdoc(module) or "").split("\n\n")[0])), ("", "")]
    pairs.append(("", _("Demos (--demo 1, --demo 1,2; all by default):")))
    for demo in demos:
        number, name = number_and_name(demo)
        pairs.append((f"  {number}  ", translated((inspect.getdoc(demo) or name).splitlines()[0])))
    pairs += [("", ""), ("", _("Knobs (flags here, or defaults to edit in the file):"))]
    for name in dict.fromkeys(name for demo in demos for name in knobs_of(demo)):
        setting = KNOBS[name]
        defaults = ", ".join(dict.fromkeys(str(knobs_of(demo)[name]) for demo in demos if name in knobs_of(demo)))
        span = _(" ({low:,} to {high:,}; here {defaults})")
        span = span.format(low=setting.low, high=setting.high, defaults=defaults) if setting.kind is not bool else ""
        pairs.append((f"  {flag(name):<12} ", setting.help + span))
    others = {
        "--sweep": _("run with each value of a knob, a row per value: --sweep block=32,64,256; twice for a grid"),
        "--lang": _("language: {languages}").format(languages=", ".join(LANGUAGES)),
        "--fresh": _("compare with no earlier run"),
        "--json": _("print one JSON object instead of tables"),
        "--check": _("exit with 1 if a sentence that must hold does not"),
        "--help": _("this text"),
    }
    return [*pairs, ("", ""), *((f"  {word:<12} ", text) for word, text in others.items())]

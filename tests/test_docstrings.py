"""Every public name says what it is, what goes in, what comes out, what it refuses and where it is from."""

import ast
import re
from pathlib import Path

import pytest

import flash_lab
import numfmt

ALGORITHMS = {"state", "variants", "rows", "forward", "cost", "errors", "numfmt"}
PLACES = {}  # name of a function, class, "Class.method" or value: (its node, the module's docstring, the module)
for path in [*sorted(Path(flash_lab.__file__).parent.glob("*.py")), Path(numfmt.__file__)]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in getattr(node, "targets", []))]
        found = {name: node for name in names if name}
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{f.name}": f for f in node.body if isinstance(f, ast.FunctionDef)}
        PLACES |= {name: (part, ast.get_docstring(tree), path.stem) for name, part in found.items()}
VALUES = {name for name, (node, _doc, _module) in PLACES.items() if isinstance(node, ast.Assign)}
IN_NUMFMT = {name for name in PLACES.keys() - VALUES if PLACES[name][2] == "numfmt" and not name.startswith("_")}
METHODS = {name for name in PLACES if name.split(".")[0] in flash_lab.__all__ and "." in name}
PUBLIC = sorted(name for name in {*flash_lab.__all__, *IN_NUMFMT, *METHODS} if "._" not in name)
FUNCTIONS = [name for name in PUBLIC if isinstance(PLACES[name][0], ast.FunctionDef)]


def doc(name):
    return "" if name in VALUES else ast.get_docstring(PLACES[name][0]) or ""


def elsewhere(name, what=""):
    """The names that the docstring sends its reader to for `what`: "errors as in `other`"."""
    there = re.findall(rf"{what}[^.]*? as in\s+`(\w+)`", doc(name), re.IGNORECASE)
    return [other for other in PLACES for reference in there if other.split(".")[-1] == reference]


def parameters(name):
    """What is handed over: a function's parameters, or a class's fields and the parameters of its own __init__."""
    node = PLACES[name][0]
    if isinstance(node, ast.ClassDef):
        fields = [field.target.id for field in node.body if isinstance(field, ast.AnnAssign)]
        return fields + (parameters(f"{name}.__init__") if f"{name}.__init__" in PLACES else [])
    return [x.arg for x in ast.walk(node.args) if isinstance(x, ast.arg) and x.arg != "self"]


def describes(name, parameter):
    """Whether the parameter, or a list it is in, stands before a colon, a bracket or "as in `other`", here or there."""
    here = re.search(rf"(?<![\w.]){parameter}((,| and) \w+)*`?(:| \(| as in\s+`)", doc(name))
    return bool(here) or any(describes(other, parameter) for other in elsewhere(name) if parameter in parameters(other))


def says_what_comes_out(name):
    """ "Returns", "Yield", "result as in `other`", or a first line that is the name of a value."""
    value = re.match(r"The |.*, of shape \(", doc(name)) or re.search(r"\b(Returns|Yield) \S", doc(name))
    return bool(value) or any(map(says_what_comes_out, elsewhere(name, "result")))


def says_what_it_refuses(name):
    return "Raises ValueError" in doc(name) or any(map(says_what_it_refuses, elsewhere(name, "errors")))


def refuses(name):
    """Whether the function raises ValueError, itself or in a function of the project that it calls by name."""
    nodes = [*ast.walk(PLACES[name][0])]
    raised = [ast.unparse(node.exc) for node in nodes if isinstance(node, ast.Raise) and node.exc]
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)} - {name}
    functions = [f for f in called & PLACES.keys() if isinstance(PLACES[f][0], ast.FunctionDef)]
    return any(error.startswith("ValueError") for error in raised) or any(map(refuses, functions))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_name_is_introduced_by_one_line_of_its_own_or_by_its_module_where_it_is_a_value(name):
    if name in VALUES:
        assert re.search(rf"(?<!\w){name}(?!\w)", PLACES[name][1])
    else:
        assert re.match(r"\S+ \S+ .*[.:]$", doc(name).split("\n")[0])
        assert [parameter for parameter in parameters(name) if not describes(name, parameter)] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_comes_out_and_what_it_refuses(name):
    assert says_what_comes_out(name)
    assert says_what_it_refuses(name) or not refuses(name)


@pytest.mark.parametrize("name", [name for name in PUBLIC if PLACES[name][2] in ALGORITHMS])
def test_an_algorithm_names_its_source_itself_or_in_its_module(name):
    assert re.search(r"\bSources?: [A-Z]", f"{PLACES[name][1]}\n{doc(name)}")

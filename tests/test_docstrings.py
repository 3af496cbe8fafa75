"""Every public callable says what each parameter means, and shows an example. `make doctest` runs the examples."""

import inspect
import re

import pytest

import lamina
from public import ROOMS

# Methods that users call. Those of surfaces and of conditions are called by solves.
METHODS = {
    lamina.Domain: ("evaluate", "field", "interpolate", "load", "to", "cut_along", "with_scheme"),
    lamina.Solution: (
        "__call__", "animate", "channel", "page", "plot", "report", "save", "scene", "show", "statistics",
    ),
    lamina.Eigenmodes: ("__call__", "mode"),
    lamina.nn.HeatLayer: ("forward",),
    lamina.nn.PoissonLayer: ("forward",),
}  # fmt: skip


def public_callables():
    found = {}
    for room in ROOMS:
        module = lamina if room == "lamina" else getattr(lamina, room.removeprefix("lamina."))
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                found[f"{room}.{name}"] = value
    for of, names in METHODS.items():
        found |= {f"{of.__module__}.{of.__name__}.{name}": getattr(of, name) for name in names}
    return found


CALLABLES = public_callables()


def section(doc, title):
    """The lines of a section of a numpydoc docstring."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-{{3,}}\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def documented(doc):
    """Parameter -> what is said of it."""
    lines = section(doc, "Parameters") + "\n"
    entries = re.findall(r"^(\w[^\n]*?) : [^\n]+\n((?:    [^\n]*\n|\n)*)", lines, re.MULTILINE)
    entries += re.findall(r"^\*\*(\w+)\n((?:    [^\n]*\n)*)", lines, re.MULTILINE)
    return {name.strip(): text for names, text in entries for name in names.split(",")}


def parameters(of):
    if inspect.isclass(of):
        if issubclass(of, Exception):
            return []
        of = of.__init__
    return [name for name in inspect.signature(of).parameters if name != "self"]


def test_the_list_has_functions_classes_and_methods():
    expected = {"lamina.poisson", "lamina.nn.HeatLayer", "lamina.paper.BandDomain", "lamina.baselines.solve"}
    assert expected <= set(CALLABLES)
    assert len(CALLABLES) > 45


@pytest.mark.parametrize("name", CALLABLES)
def test_every_parameter_is_documented(name):
    found = documented(inspect.getdoc(CALLABLES[name]))
    assert list(found) == parameters(CALLABLES[name])
    assert not [parameter for parameter, text in found.items() if not text.strip()]


@pytest.mark.parametrize("name", CALLABLES)
def test_there_is_an_example(name):
    of = CALLABLES[name]
    doc = inspect.getdoc(of)
    assert ">>>" in section(doc, "Examples"), name
    assert doc.split("\n\n")[0].endswith((".", ":")), "the first paragraph is a sentence"


@pytest.mark.parametrize("name", [n for n, c in CALLABLES.items() if inspect.isfunction(c)])
def test_functions_say_what_they_return(name):
    doc = inspect.getdoc(CALLABLES[name])
    assert section(doc, "Returns") or name.endswith(".show")

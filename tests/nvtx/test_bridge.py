"""tailwatch.nvtx: ranges of the user's beside ours, with the PyPI package nvtx and without it."""

from __future__ import annotations

import importlib.util

import pytest

OWN = """
import tailwatch
from tailwatch import nvtx
print(nvtx.attached())
with nvtx.range("before"): pass
watch = tailwatch.install(gc="observe")
print(nvtx.attached())
one = nvtx.range("one", payload=-5)
with one as given, one:
    assert given is one
    nvtx.mark("here", payload=2**63 - 1)
tailwatch.uninstall()
print(nvtx.attached())
nvtx.mark("after")
"""


def test_ranges_of_ours_need_no_package(watched) -> None:
    """`with nvtx.range(...)`, entered twice, with a payload; before install() and after uninstall() nothing."""
    story = watched(OWN)

    assert story.printed.split() == ["False", "True", "False"]
    assert [r.begin.payload for r in story.started()] == [-5, -5]
    marks = [e for e in story("mark") if story.categories[e.category] == "user"]
    assert [(e.text, e.payload) for e in marks] == [("here", 2**63 - 1)]


def test_without_a_tool_they_do_nothing(alone) -> None:
    """The same script prints that no tool is there."""
    assert alone(OWN).split() == ["False", "False", "False"]


PACKAGE = """
import asyncio, gc, tailwatch
from tailwatch import nvtx
watch = tailwatch.install(gc="observe")
gc.disable()
with nvtx.annotate("around", payload=3):
    gc.collect()
    domain = nvtx.domain()
    number = domain.start_range(message="theirs")
    with tailwatch.step("decode"):
        pass
    domain.end_range(number)
    domain.push_range(message="pushed"); domain.pop_range()
@nvtx.annotate("decorated")
def work():
    return 7
assert work() == 7
"""


def test_the_package_and_we_share_one_domain(watched) -> None:
    """Its ranges and ours nest in the same stack of the domain `tailwatch`, and all are balanced."""
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("the PyPI package nvtx is not installed: pip install nvtx")
    story = watched(PACKAGE)

    assert len([e for e in story.events if e.what == "domain" and e.domain == "tailwatch"]) == 1
    (around,) = story.pushed("around")
    (collection,) = story.pushed("gc2")
    assert around.begin.at < collection.begin.at < collection.end.at < around.end.at
    assert (around.begin.depth, collection.begin.depth) == (0, 1)
    assert len(story.started("theirs")) == len(story.pushed("pushed")) == len(story.pushed("decorated")) == 1
    assert len(story.started("decode")) == 1


MISSING = "import gc, sys; gc.disable(); sys.modules['nvtx'] = None\n" + PACKAGE


def test_without_the_package_its_part_does_nothing(watched) -> None:
    """annotate() and domain() are inert, a decorated function is itself; what is ours is marked as before."""
    story = watched(MISSING)

    assert [r.begin.text for r in story.pushed()] == ["gc2"]
    assert [r.begin.text for r in story.started()] == ["decode"]


NO_TEXT = """
import tailwatch
tailwatch.install(gc="observe")
try:
    tailwatch.nvtx.mark(3)
except TypeError as error:
    print(error)
"""


def test_a_name_that_is_no_text_is_refused(watched) -> None:
    """TypeError, where a tool is attached."""
    assert "expected a text, found 3" in watched(NO_TEXT).printed


LARGE = """
import tailwatch
tailwatch.install(gc="observe")
for payload in (2**64 + 5, -1, 2**63):
    tailwatch.nvtx.mark("large", payload=payload)
    with tailwatch.nvtx.range("wide", payload=payload):
        pass
"""


def test_a_payload_of_more_bits_raises_nothing(watched) -> None:
    """The low 64 of them are passed on: a tool that is attached breaks no code that works without one."""
    story = watched(LARGE)

    assert [e.payload for e in story("mark", "large")] == [5, -1, -(2**63)]
    assert [r.begin.payload for r in story.started("wide")] == [5, -1, -(2**63)]

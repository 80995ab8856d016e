"""The words that docs/glossary.md retires do not come back."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PLACES = (
    *("tailwatch", "tailwatch_boot", "csrc", "docs", "examples", "benchmarks", "tests"),
    *("README.md", "CONTRIBUTING.md"),
)
# Other projects' sources, and files that are no text of ours.
LEFT_OUT = (
    "csrc/third_party/",
    "benchmarks/results/",
    "benchmarks/load/environments/",
    "tailwatch/page/uplot/",
    "tailwatch/loadtest/prompts.py",
    "tests/c/corpus/",
    "tests/c/data/",
    "tests/nvtx/data/",
)
SUFFIXES = (".py", ".pyi", ".c", ".h", ".md", ".yml", ".json", ".js", ".css", ".html", ".sh", ".txt")
BLOCK = re.compile(r"^```retired\n(.*?)^```$", re.DOTALL | re.MULTILINE)
VERBS = re.compile(r"^```verbs\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Comments, strings and characters of C.
NO_CODE = re.compile(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)

# Names that have one of the glossary's verbs or pronouns all the same.
ALLOWED = {
    "who",  # a local variable: the processes that a sentence is about
    "NOBODY_WAITS_NS",  # of csrc/python/gc/idle_slots.c: a bound of time
}


def read(file: Path) -> str:
    """A file's text; the glossary without its list."""
    text = file.read_text(encoding="utf-8")
    return BLOCK.sub("", text) if file == GLOSSARY else text


def files() -> list[Path]:
    """Every text file of the product, its tests and its guides."""
    found = [file for place in PLACES for file in (sorted((ROOT / place).rglob("*")) or [ROOT / place])]
    named = {file: file.relative_to(ROOT).as_posix() for file in found if file.suffix in SUFFIXES and file.is_file()}
    return [file for file, name in named.items() if not name.startswith(LEFT_OUT) and "__pycache__" not in name]


def retired() -> dict[str, str]:
    """New words by old ones."""
    (block,) = BLOCK.findall(GLOSSARY.read_text(encoding="utf-8"))
    pairs = [line.partition(" -> ") for line in block.splitlines()]
    assert all(old and new for old, _, new in pairs)
    assert len({old for old, _, _ in pairs}) == len(pairs)
    return {old: new for old, _, new in pairs}


def pattern(word: str) -> re.Pattern[str]:
    """A whole word, also between the underscores of a name in lower case; `--alpha` is not `--alpha-path`, nor ALPHA
    the beginning of ALPHA_PATH. A `*` stands for any rest of it."""
    bare = word.strip("*")
    letters = "[A-Za-z0-9-]" if word.islower() else r"[\w-]"
    before = f"(?<!{letters})" if re.match(r"[\w-]", word) else ""
    after = f"(?!{letters})" if re.search(r"\w$", word) else ""
    return re.compile(before + re.escape(bare) + after)


TEXTS = {file.relative_to(ROOT).as_posix(): read(file) for file in files()}


@pytest.mark.parametrize("old, new", retired().items(), ids=list(retired()))
def test_it_does_not_occur(old: str, new: str) -> None:
    """Neither in the code nor in a text about it."""
    word = pattern(old)
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in TEXTS.items()
        if old.strip("*") in text  # the pattern alone takes a hundred times as long
        for number, line in enumerate(text.splitlines(), 1)
        if word.search(line)
    ]
    assert found == [], f"{old} is now {new}"


def identifiers(file: Path) -> set[str]:
    """Those of a source file in Python or C; not those inside of comments and strings."""
    if file.suffix in (".py", ".pyi"):
        with file.open("rb") as lines:
            return {token.string for token in tokenize.tokenize(lines.readline) if token.type == tokenize.NAME}
    return set(re.findall(r"[A-Za-z_]\w*", NO_CODE.sub(" ", file.read_text(encoding="utf-8"))))


def verb() -> re.Pattern[str]:
    """One of the glossary's verbs and pronouns, between the underscores of a name."""
    (block,) = VERBS.findall(GLOSSARY.read_text(encoding="utf-8"))
    return re.compile(rf"(^|_)({'|'.join(block.split())})(_|$)", re.IGNORECASE)


@pytest.mark.parametrize(
    "place, least",
    [("tailwatch", 200), ("tailwatch_boot", 5), ("csrc", 150), ("tests", 250), ("benchmarks", 30), ("examples", 5)],
)
def test_no_identifier_has_a_verb_of_persons(place: str, least: int) -> None:
    """Code records, publishes, reads and waits; a test is named after a thing."""
    word = verb()
    every = [file for file in (ROOT / place).rglob("*") if file.suffix in (".py", ".pyi", ".c", ".h")]
    sources = [file for file in every if not file.relative_to(ROOT).as_posix().startswith(LEFT_OUT)]
    names = {file.relative_to(ROOT).as_posix(): identifiers(file) - ALLOWED for file in sources}
    found = {name: sorted(filter(word.search, these)) for name, these in names.items()}
    assert len(sources) > least
    assert {name: these for name, these in found.items() if these} == {}


def test_the_search_finds_verbs_in_names(tmp_path: Path) -> None:
    """Whole parts of a name, in Python and in C, also behind a string; not a part of another word."""
    python, c = tmp_path / "a.py", tmp_path / "a.c"
    python.write_text("_said_once = 'tell'  # says\nunknown = intelligence = 1\n")
    c.write_text('char y = \'"\'; int n_owed; /* says */ char *x = "a \\" tells"; int TOLD_BYTES; int known; // lent\n')
    assert [name for name in identifiers(python) if verb().search(name)] == ["_said_once"]
    assert sorted(name for name in identifiers(c) if verb().search(name)) == ["TOLD_BYTES", "n_owed"]


def test_a_word_stands_once_in_the_glossary() -> None:
    """Each is defined once, in one line."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    words = [row for row in rows if row != "word"]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


def test_the_search_finds_whole_words() -> None:
    """Parts of longer names are others; the texts are found."""
    assert pattern("--alpha").search("wait with --alpha PATH") and not pattern("--alpha").search("--alpha-path")
    assert pattern("beta_ms").search("beta_ms=5") and not pattern("beta_ms").search("beta_msg")
    assert pattern("beta_ms").search("_the_beta_ms_now") and not pattern("beta_ms").search("alphabeta_ms")
    assert pattern("gamma*").search("gammas") and not pattern("gamma*").search("agamma")
    assert pattern("*GAMMA*").search("A_GAMMA_B")
    assert {"README.md", "docs/gc.md", "tests/project/test_words.py"} <= set(TEXTS)

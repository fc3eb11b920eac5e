"""Regular expressions of CRD schemas, matched in time proportional to pattern and text.

Kubernetes uses RE2, which does not backtrack; Python's `re` does, so that a short pattern and a short text can take
years. A pattern is parsed here (RE2's syntax), compiled to a nondeterministic automaton and run with the set of its
states; moves between sets are remembered, up to MAX_CACHED_MOVES. Patterns beyond MAX_STATES are refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

MAX_STATES = 20_000
MAX_REPEAT = 1000  # as in RE2
MAX_DEPTH = 200
MAX_CACHED_MOVES = 20_000

Test = Callable[[str], bool]


class PatternError(ValueError):
    """The pattern is not RE2's syntax, or too large."""


@dataclass(slots=True)
class _State:
    """Either reads one character (`test`), or goes on without one, where `assertion` holds."""

    test: Test | None = None
    assertion: str = ""  # ^ $ b B A z
    targets: list[int] = field(default_factory=list)


_PERL: dict[str, Test] = {
    "d": lambda c: "0" <= c <= "9",
    "w": lambda c: c.isascii() and (c.isalnum() or c == "_"),
    "s": lambda c: c in "\t\n\f\r ",
}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_POSIX: dict[str, Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": _PERL["d"],
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": _PERL["w"],
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}


@dataclass(slots=True)
class _Node:
    """A set of states between two characters, with the class of the character before, and its known moves."""

    states: frozenset[int]
    before: str
    moves: dict[str, _Node | None] = field(default_factory=dict)  # None: the pattern has matched


class Pattern:
    """A compiled pattern; `search` says whether it matches anywhere in a text."""

    def __init__(self, pattern: str) -> None:
        self._states: list[_State] = []
        self._first, self._last = _Parser(pattern, self._states).parse()
        self._nodes: dict[tuple[frozenset[int], str], _Node] = {}
        self._cached_moves = 0

    def search(self, text: str) -> bool:
        node = self._node(frozenset([self._first]), "-")
        for character in text:
            try:
                following = node.moves[character]
            except KeyError:
                following = self._move(node, character)
            if following is None:
                return True
            node = following
        return self._last in self._follow(node, "-")

    def _node(self, states: frozenset[int], before: str) -> _Node:
        node = self._nodes.get((states, before))
        if node is None:
            node = self._nodes[(states, before)] = _Node(states, before)
        return node

    def _move(self, node: _Node, character: str) -> _Node | None:
        reachable = self._follow(node, _class(character))
        following = None
        if self._last not in reachable:
            states = {self._first}  # a match may begin at every character
            for number in reachable:
                state = self._states[number]
                if state.test is not None and state.test(character):
                    states.update(state.targets)
            following = self._node(frozenset(states), _class(character))
        self._cached_moves += 1
        if self._cached_moves > MAX_CACHED_MOVES:
            self._cached_moves = 0
            self._nodes.clear()
            node.moves.clear()
        node.moves[character] = following
        return following

    def _follow(self, node: _Node, after: str) -> set[int]:
        """The states that are reached without reading, before a character of the class `after`."""
        seen, stack = set(node.states), list(node.states)
        while stack:
            state = self._states[stack.pop()]
            if state.test is not None or (state.assertion and not _holds(state.assertion, node.before, after)):
                continue
            for target in state.targets:
                if target not in seen:
                    seen.add(target)
                    stack.append(target)
        return seen


def _class(character: str) -> str:
    """What assertions see of a character: a line feed, a word character or another; "-" stands for none."""
    return "n" if character == "\n" else "w" if _PERL["w"](character) else "o"


def _holds(assertion: str, before: str, after: str) -> bool:
    """Whether an assertion holds between characters of two classes."""
    if assertion == "A":
        return before == "-"
    if assertion == "z":
        return after == "-"
    if assertion == "^":
        return before in "-n"
    if assertion == "$":
        return after in "-n"
    return ((before == "w") is not (after == "w")) is (assertion == "b")


@dataclass(slots=True)
class _Flags:
    fold: bool = False
    multiline: bool = False
    dot_all: bool = False


class _Parser:
    """Recursive descent; every part becomes a fragment (first state, last state)."""

    def __init__(self, pattern: str, states: list[_State]) -> None:
        self._text = pattern
        self._at = 0
        self._states = states
        self._depth = 0

    def parse(self) -> tuple[int, int]:
        fragment = self._alternatives(_Flags())
        if self._at < len(self._text):
            raise PatternError(f"unexpected ): `{self._text}`")
        return fragment

    def _new(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError("expression too large")
        self._states.append(state)
        return len(self._states) - 1

    def _empty(self, assertion: str = "") -> tuple[int, int]:
        first = self._new(_State(assertion=assertion))
        if not assertion:
            return first, first
        last = self._new(_State())
        self._states[first].targets.append(last)
        return first, last

    def _reads(self, test: Test) -> tuple[int, int]:
        first, last = self._new(_State(test=test)), self._new(_State())
        self._states[first].targets.append(last)
        return first, last

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        character = self._peek()
        self._at += 1
        return character

    def _alternatives(self, flags: _Flags) -> tuple[int, int]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise PatternError("expression nests too deeply")
        branches = [self._sequence(flags)]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence(flags))
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        first, last = self._new(_State(targets=[b for b, _ in branches])), self._new(_State())
        for _, end in branches:
            self._states[end].targets.append(last)
        return first, last

    def _sequence(self, flags: _Flags) -> tuple[int, int]:
        first, last = self._empty()
        while self._peek() not in ("", "|", ")"):
            begin = self._at
            fragment = self._atom(flags)
            if fragment is None:
                continue
            start, end = self._repeated(fragment, begin, flags)
            self._states[last].targets.append(start)
            last = end
        return first, last

    def _repeated(self, fragment: tuple[int, int], begin: int, flags: _Flags) -> tuple[int, int]:
        """The fragment with the repetition that follows it; `begin` is where its text starts, for copies."""
        end_of_atom = self._at
        bounds = self._bounds()
        if bounds is None:
            return fragment
        if self._peek() == "?":  # the same texts match, only in another order of preference
            self._at += 1
        if self._peek() in ("*", "+", "?") or (self._peek() == "{" and self._is_bounds()):
            raise PatternError(f"invalid nested repetition operator: `{self._text[end_of_atom : self._at + 1]}`")
        after, least, most = self._at, *bounds

        def copy() -> tuple[int, int]:
            self._at = begin
            made = self._atom(flags)
            assert made is not None, "only atoms are repeated"
            return made

        parts = [fragment, *(copy() for _ in range(1, max(least, most or 0, 1)))]
        last = self._new(_State())
        if most == 0:
            self._at = after
            return last, last
        for number, (start, end) in enumerate(parts):
            if number:
                self._states[parts[number - 1][1]].targets.append(start)
            if number + 1 >= least:
                self._states[end].targets.append(last)
        first = self._new(_State(targets=[parts[0][0]]))
        if least == 0:
            self._states[first].targets.append(last)
        if most is None:
            self._states[parts[-1][1]].targets.append(parts[-1][0])
        self._at = after
        return first, last

    def _is_bounds(self) -> bool:
        return re.compile(r"\{\d+(,\d*)?\}").match(self._text, self._at) is not None

    def _bounds(self) -> tuple[int, int | None] | None:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            return simple[self._take()]
        match = re.compile(r"\{(\d+)(,(\d*))?\}", re.ASCII).match(self._text, self._at)
        if match is None:
            return None
        if max(len(match[1]), len(match[3] or "")) > 4:
            raise PatternError(f"invalid repeat count: `{match[0]}`")
        least = int(match[1])
        most = least if match[2] is None else int(match[3]) if match[3] else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise PatternError(f"invalid repeat count: `{match[0]}`")
        self._at = match.end()
        return least, most

    def _atom(self, flags: _Flags) -> tuple[int, int] | None:
        """One atom; None for a group that only sets flags."""
        character = self._take()
        if character == "(":
            return self._group(flags)
        if character == "[":
            return self._reads(self._folded(self._set(), flags))
        if character == ".":
            return self._reads((lambda c: True) if flags.dot_all else (lambda c: c != "\n"))
        if character == "^":
            return self._empty("^" if flags.multiline else "A")
        if character == "$":
            return self._empty("$" if flags.multiline else "z")
        if character in "*+?":
            raise PatternError(f"missing argument to repetition operator: `{character}`")
        if character == "\\":
            return self._escape(flags)
        return self._reads(self._folded(_literal(character), flags))

    def _group(self, flags: _Flags) -> tuple[int, int] | None:
        inner = _Flags(flags.fold, flags.multiline, flags.dot_all)
        if self._peek() == "?":
            match = re.compile(r"\?(?:P?<\w+>|([imsU]*)(?:-([imsU]+))?([:)]))", re.ASCII).match(self._text, self._at)
            if match is None:
                raise PatternError(f"invalid or unsupported Perl syntax: `({self._text[self._at : self._at + 2]}`")
            self._at = match.end()
            if match[3]:
                target = inner if match[3] == ":" else flags
                for letters, value in ((match[1], True), (match[2] or "", False)):
                    target.fold = value if "i" in letters else target.fold
                    target.multiline = value if "m" in letters else target.multiline
                    target.dot_all = value if "s" in letters else target.dot_all
                if match[3] == ")":
                    return None
        fragment = self._alternatives(inner)
        if self._take() != ")":
            raise PatternError(f"missing closing ): `{self._text}`")
        return fragment

    def _folded(self, test: Test, flags: _Flags) -> Test:
        if not flags.fold:
            return test
        return lambda c: test(c) or test(c.lower()) or test(c.upper())

    def _escape(self, flags: _Flags) -> tuple[int, int]:
        character = self._peek()
        if character and character in "bBAz":
            self._at += 1
            return self._empty(character)
        if character == "Q":
            end = self._text.find("\\E", self._at + 1)
            quoted = self._text[self._at + 1 : end if end >= 0 else None]
            self._at = end + 2 if end >= 0 else len(self._text)
            first, last = self._empty()
            for letter in quoted:
                start, stop = self._reads(self._folded(_literal(letter), flags))
                self._states[last].targets.append(start)
                last = stop
            return first, last
        return self._reads(self._folded(self._character_class() or _literal(self._escaped()), flags))

    def _character_class(self) -> Test | None:
        """The test of `\\d`, `\\pL` and similar after the backslash; None where a single character follows."""
        character = self._peek()
        if character and character in "dwsDWS":
            self._at += 1
            test = _PERL[character.lower()]
            return test if character.islower() else lambda c: not test(c)
        if character in ("p", "P"):
            match = re.compile(r"[pP](?:\{(\^?)(\w+)\}|(\w))").match(self._text, self._at)
            if match is None or (match[2] or match[3])[:1] not in "LMNPSZC" or len(match[2] or match[3]) > 2:
                raise PatternError(f"invalid character class range: `\\{self._text[self._at : self._at + 2]}`")
            self._at = match.end()
            name, negated = match[2] or match[3], (character == "P") is not bool(match[1])
            return lambda c: unicodedata.category(c).startswith(name) is not negated
        return None

    def _escaped(self) -> str:
        """The single character after a backslash."""
        character = self._take()
        if character in _ESCAPED:
            return _ESCAPED[character]
        if character == "x":
            match = re.compile(r"\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{2})").match(self._text, self._at)
            if match is None or int(match[1] or match[2], 16) > 0x10FFFF:
                raise PatternError(f"invalid escape sequence: `\\x{self._text[self._at : self._at + 2]}`")
            self._at = match.end()
            return chr(int(match[1] or match[2], 16))
        if character == "0":
            match = re.compile(r"[0-7]{0,2}").match(self._text, self._at)
            assert match is not None, "the expression matches the empty text"
            self._at = match.end()
            return chr(int("0" + match[0], 8))
        if not character:
            raise PatternError("trailing backslash at end of expression: ``")
        if character.isascii() and (character.isalnum()):
            raise PatternError(f"invalid escape sequence: `\\{character}`")
        return character

    def _set(self) -> Test:
        """A bracket expression, after its opening bracket."""
        begin = self._at
        negated = self._peek() == "^"
        self._at += negated
        tests: list[Test] = []
        ranges: list[tuple[str, str]] = []
        while self._peek() != "]" or not (tests or ranges):
            if not self._peek():
                raise PatternError(f"missing closing ]: `[{self._text[begin:]}`")
            named = re.compile(r"\[:(\^?)(\w+):\]").match(self._text, self._at)
            if named is not None:
                if named[2] not in _POSIX:
                    raise PatternError(f"invalid character class range: `{named[0]}`")
                self._at = named.end()
                tests.append(_negated(_POSIX[named[2]], bool(named[1])))
                continue
            if self._peek() == "\\":
                self._at += 1
                if (test := self._character_class()) is not None:
                    tests.append(test)
                    continue
                low = self._escaped()
            else:
                low = self._take()
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._take()
                if high == "\\":
                    high = self._escaped()
                if high < low:
                    raise PatternError(f"invalid character class range: `{low}-{high}`")
            ranges.append((low, high))
        self._at += 1
        fixed = frozenset(low for low, high in ranges if low == high)
        wide = [(low, high) for low, high in ranges if low != high]

        def within(c: str) -> bool:
            return c in fixed or any(low <= c <= high for low, high in wide) or any(test(c) for test in tests)

        return _negated(within, negated)


def _literal(expected: str) -> Test:
    return lambda c: c == expected


def _negated(test: Test, negated: bool) -> Test:
    return (lambda c: not test(c)) if negated else test


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Pattern:
    """The compiled pattern; raises PatternError."""
    return Pattern(pattern)

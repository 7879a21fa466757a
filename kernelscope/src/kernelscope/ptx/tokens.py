"""PTX text as words and marks, with the line that an error names."""

import re
from collections.abc import Iterator

from ..budget import check_budget
from ..errors import ParseError

_SPACE = r"(?>\s+|//[^\n]*|/\*.*?\*/)*+"
_WORD_OR_MARK = r'"(?:[^"\\]|\\.)*"|[\w.$%~]+(?:::[\w.$]+)*|[{}();:,\[\]=<>|!@+\-*&]'
# A section of debug information can be a million words: those between its braces are one token.
_SECTION = r"\.section\s++\.\w++\s*+\{[\w.$%~\s();:,\[\]=<>|!@+\-*&]*+(?=\})"
_TOKEN = re.compile(rf"{_SPACE}({_SECTION}|{_WORD_OR_MARK})", re.DOTALL | re.ASCII)
_WORDS = re.compile(_WORD_OR_MARK, re.DOTALL | re.ASCII)


_WORDS_BETWEEN_LOOKS = 4096


class Tokens:
    """The words and marks of a PTX text, read from first to last; "" stands at the end.

    Whatever finds something else than it expects raises ParseError with the line of the text;
    reading past the end raises IndexError.
    """

    def __init__(self, text: str):
        self.text = text
        self.words: list[str] = []
        self.starts: list[int] = []
        self.at = 0
        words, starts, end = self.words, self.starts, 0
        for count, match in enumerate(_TOKEN.finditer(text)):
            if match.start() != end:
                break
            if not count % _WORDS_BETWEEN_LOOKS:
                check_budget("a kernel", lambda: "the words of its PTX")
            word, end = match[1], match.end()
            if word[0] == "." and "." in word[1:]:
                self.add(word, match.start(1))
            else:
                words.append(word)
                starts.append(match.start(1))
        place = re.compile(_SPACE, re.DOTALL | re.ASCII).match(text, end).end()
        if place < len(text):
            raise self.error(place, f"cannot read {text[place : place + 20]!r}")
        self.add("", len(text))

    def add(self, word: str, place: int) -> None:
        """Append a word, or the words of which it is made, all at one place of the text."""
        head, brace, section = word.partition("{") if len(word) > 1 else (word, "", "")
        if brace and word[0] == ".":
            parts = [*head.split(), "{", *([section] if section.strip() else [])]
            self.words += parts
            self.starts += [place] * len(parts)
            return
        if word[:1] == "." and "." in word[1:]:  # `.reg.b32` is two words
            for part in word[1:].split("."):
                self.add("." + part, place)
            return
        self.words.append(word)
        self.starts.append(place)

    @property
    def next(self) -> str:
        """The next word, without taking it."""
        return self.words[self.at]

    def take(self) -> str:
        """Take the next word; raises ParseError for a string, which is never a name."""
        word = self.words[self.at]
        if word[:1] == '"':
            self.fail(f"a string where a name or a mark is expected: {ascii(word)}")
        self.at += 1
        return word

    def take_any(self) -> str:
        """Take the next word, which may be a string."""
        self.at += 1
        return self.words[self.at - 1]

    def block_text(self) -> str:
        """Take what stands before the next `}`, of a block without blocks in it, as one text."""
        start = self.at
        while self.next != "}":
            self.take_any()
        return " ".join(self.words[start : self.at])

    def put_back(self) -> None:
        """Undo the last take()."""
        self.at -= 1

    def accept(self, word: str) -> bool:
        """Take the next word if it is this one."""
        if self.words[self.at] == word:
            self.at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        """Take the next word; raise ParseError if it is another one."""
        if not self.accept(word):
            self.fail(f"expected {word!r}, found {self.next!r}")

    def skip_statement(self) -> None:
        """Take everything up to and including `;`."""
        while self.take_any() != ";":
            pass

    def block_until(self, wanted: str) -> Iterator[None]:
        """Take everything up to and including the `}` of a block whose `{` is taken.

        Stops behind each declaration's word that is `wanted`; the caller takes what follows.
        """
        depth = 1
        while depth:
            word = self.words[self.at]
            depth += (word == "{") - (word == "}")
            self.at += 1
            if word == wanted and self.words[self.at - 2] != ".ptr":
                yield

    def integer(self) -> int:
        """Take a number: decimal, octal or hexadecimal, perhaps negative."""
        sign = -1 if self.accept("-") else 1
        word = self.take()
        try:
            return sign * int(word.rstrip("Uu"), 8 if re.fullmatch(r"0\d+U?", word) else 0)
        except ValueError:
            self.fail(f"expected an integer, found {word!r}")

    def statement(self, start: int) -> str:
        """Return the text from a word up to its `;` on one line of ASCII, cut where it is long."""
        end = next((i for i in range(start, self.at + 32) if self.words[i] in (";", "")), start)
        text = " ".join(self.text[self.starts[start] : self.starts[end] + 1].split())
        text = ascii(text)[1:-1]
        return text if len(text) <= 100 else f"{text[:97]}..."

    def file_name(self, number: int) -> str:
        """Last part of the name that `.file` gives a number, often at the end of the text."""
        start = [".file", str(number)]
        for i in range(len(self.words) - 2):
            if self.words[i : i + 2] == start:
                return ascii(self.words[i + 2].strip('"').rsplit("/", 1)[-1])[1:-1]
        return "?"

    def error(self, place: int, message: str) -> ParseError:
        """Return the error for a place of the text."""
        return ParseError(f"PTX line {self.text.count(chr(10), 0, place) + 1}: {message}")

    def fail(self, message: str):
        """Raise ParseError for the next word."""
        raise self.error(self.starts[min(self.at, len(self.starts) - 1)], message)


def words_of(text: str) -> list[str]:
    """Return the words and marks of the text of a section."""
    return _WORDS.findall(text)

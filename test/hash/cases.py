"""Reads cases.txt: JSON texts, and what is to come of each."""

import os
from urllib.parse import unquote_to_bytes

HERE = os.path.dirname(os.path.abspath(__file__))


class Case:
    """A line of cases.txt."""

    def __init__(self, line):
        name, text, exact, *more = line.split('\t')
        more = dict(field.split(':', 1) for field in more)
        self.name, self.text, self.exact = name, unquote_to_bytes(text), self.outcome(text, exact)
        self.jcs = self.outcome(text, more.pop('jcs', exact))
        self.jsonb = self.outcome(text, more.pop('jsonb', exact))
        if more:
            raise ValueError(f'{name}: what is {more}?')

    @staticmethod
    def outcome(text, field):
        """Canonical text, or (kind, position)."""
        if field.startswith('!'):
            kind, _, position = field[1:].partition('@')
            return kind, int(position or 0)
        return unquote_to_bytes(text if field == '=' else field).decode()

    def in_utf8(self):
        """Whether a database with encoding UTF8 can hold the text."""
        try:
            return '\0' not in self.text.decode()
        except UnicodeDecodeError:
            return False


def read_cases():
    with open(os.path.join(HERE, 'cases.txt'), encoding='utf-8') as file:
        lines = [line.rstrip('\n') for line in file]
    return [Case(line) for line in lines if line and not line.startswith('#')]

"""Random values, other spellings of a value, and values that differ a little."""

import json
from decimal import Decimal

import oracle

SMALLEST_NORMAL = Decimal('2.2250738585072014e-308')
LARGEST_DOUBLE = Decimal('1.7976931348623157e308')

# What encodings, escapes and sort orders trip over.
CHARACTERS = ('abAZ019 /\'<&', '"\\', '\x01\x08\t\n\x0b\f\r\x1f', '\x7f\x80\x9f\xa0\xe9\u0301\u07ff', '\u0800\u20ac\u2028\u2029',
              '\ud7ff\ue000\ufb33\ufdd0\ufeff\ufffd\ufffe\uffff', '\U00010000\U0001f602\U0001fffe\U0010fffe\U0010ffff')
SPACE = ('', '', '', ' ', '\t', '\n', '\r\n  ')


class Documents:
    def __init__(self, random):
        self.random = random

    #
    # Values
    #

    def character(self):
        if self.random.random() < 0.1:
            code = self.random.choice((self.random.randrange(1, 0xd800), self.random.randrange(0xe000, 0x110000)))
            return chr(code)
        return self.random.choice(self.random.choice(CHARACTERS))

    def string(self):
        length = self.random.choice((0, 1, 1, 2, 3, 5, 8, 40))
        if self.random.random() < 0.01:
            length = self.random.randrange(900, 1200)
        return ''.join(self.character() for _ in range(length))

    def digits(self, count):
        """Some with zeros at an end or inside, or nothing but nines."""
        text = ''.join(self.random.choice('0012345678999') for _ in range(count))
        return self.random.choice((text, text, text, '9' * count, '0' * (count // 2) + text, text + '0' * (count // 2)))

    def number(self):
        kind = self.random.random()
        if kind < 0.2:
            return Decimal(self.random.randrange(-10, 1000))
        if kind < 0.4:
            return Decimal(self.random.randrange(-10 ** 7, 10 ** 7)).scaleb(-2)
        if kind < 0.5:
            return Decimal(repr(self.random.choice((1, -1)) * self.random.random() * 10 ** self.random.randrange(-9, 25)))
        digits = self.digits(self.random.choice((1, 2, 15, 16, 17, 21, 40, 129, 300)))
        exponent = self.random.choice((0, self.random.randrange(-50, 30), self.random.randrange(-330, 330)))
        return Decimal(f'{self.random.choice(("", "-"))}{digits}e{exponent}')

    def short_decimals(self, count):
        """At most 15 significant digits, within the range of normal doubles."""
        yield from map(Decimal, ('2.22507385850721e-308', '-1.79769313486231e308'))
        while count:
            digits = self.random.randrange(1, 10 ** self.random.randrange(1, 16))
            value = Decimal(f'{self.random.choice(("", "-"))}{digits}e{self.random.choice((-2, 0, self.random.randrange(-324, 308)))}')
            if SMALLEST_NORMAL <= abs(value) <= LARGEST_DOUBLE:
                yield value
                count -= 1

    def value(self, depth=4):
        kind = self.random.randrange(14 if depth else 8)
        if kind < 3:
            return self.number()
        if kind < 6:
            return self.string()
        if kind < 8:
            return self.random.choice((None, True, False))
        count = self.random.choice((0, 1, 2, 3, 5, 8))
        if kind < 10:
            return [self.value(depth - 1) for _ in range(count)]
        names = [self.string() for _ in range(count)]
        # Names with a common beginning, of which one may be all of it.
        if count > 2 and self.random.random() < 0.5:
            names[1:] = [names[0] + self.character() for _ in names[1:]]
        return {name: self.value(depth - 1) for name in names}

    #
    # Spellings
    #

    def spell(self, value):
        """A JSON text of the value that is canonical only by chance."""
        space = self.random.choice(SPACE)
        if isinstance(value, str):
            text = self.spell_string(value)
        elif isinstance(value, list):
            text = '[' + space + ','.join(map(self.spell, value)) + ']'
        elif isinstance(value, dict):
            names = list(value)
            self.random.shuffle(names)
            text = '{' + space + ','.join(f'{space}{self.spell_string(name)}{space}:{self.spell(value[name])}' for name in names) + '}'
        elif isinstance(value, Decimal):
            text = self.spell_number(value)
        else:
            text = oracle.canonical(value)
        return space + text + self.random.choice(SPACE)

    def spell_repeated(self, names):
        """An object with one of its names twice, in any place and spelling."""
        members = [*names, self.random.choice(names)]
        self.random.shuffle(members)
        return '{' + ','.join(f'{self.spell_string(name)}:{self.spell(self.value(1))}' for name in members) + '}'

    def spell_string(self, value):
        often = self.random.choice((0, 0.2, 1))
        return '"' + ''.join(self.spell_character(character, often) for character in value) + '"'

    def spell_character(self, character, often):
        if character in oracle.ESCAPES and self.random.random() >= often:
            return oracle.ESCAPES[character]
        if character == '/' and self.random.random() < often:
            return '\\/'
        if character in oracle.ESCAPES or self.random.random() < often:
            units = character.encode('utf-16-be')
            form = self.random.choice(('\\u{:04x}', '\\u{:04X}'))
            return ''.join(form.format(units[at] << 8 | units[at + 1]) for at in range(0, len(units), 2))
        return character

    def spell_number(self, value):
        sign, digits, exponent = value.as_tuple()
        digits = ''.join(map(str, digits))
        if self.random.random() < 0.5:
            zeros = self.random.randrange(1, 12)
            digits, exponent = digits + '0' * zeros, exponent - zeros
        minus = '-' if sign or (not value and self.random.random() < 0.5) else ''
        return minus + self.place_point(digits, exponent)

    def place_point(self, digits, exponent):
        """0.00ddd, ddd00, d.dd and all between, with an exponent to match."""
        digits = digits.lstrip('0') or '0'
        after = self.random.randrange(0, len(digits) + 4)
        padded = digits.rjust(after + 1, '0')
        whole, fraction = padded[:len(padded) - after], padded[len(padded) - after:]
        text = whole + ('.' + fraction if after else '')
        exponent += after
        if exponent or self.random.random() < 0.2:
            plus = self.random.choice(('', '+')) if exponent >= 0 else '-'
            zeros = '0' * self.random.choice((0, 0, 0, 1, 3))
            text += self.random.choice('eE') + plus + zeros + str(abs(exponent))
        return text

    #
    # Changes
    #

    def change(self, value):
        """Another value, as like this one as it gets."""
        if isinstance(value, str):
            return self.change_string(value)
        if isinstance(value, list):
            return self.change_list(value)
        if isinstance(value, dict):
            return self.change_dict(value)
        if isinstance(value, Decimal):
            return self.change_number(value)
        return self.random.choice([other for other in (None, True, False, Decimal(0), '', [], {}) if other is not value])

    def change_number(self, value):
        """Its last digit, one digit more, another exponent, the other sign, or as text."""
        sign, digits, exponent = value.as_tuple()
        kind = self.random.randrange(5)
        if kind == 0:
            return Decimal((sign, digits[:-1] + ((digits[-1] + 1) % 10,), exponent))
        if kind == 1:
            return Decimal((sign, digits + (self.random.randrange(1, 10),), exponent - 1))
        if not value or kind == 2:
            return oracle.number(value)
        if kind == 3:
            return Decimal((1 - sign, digits, exponent))
        return Decimal((sign, digits, exponent + self.random.choice((-1, 1))))

    def change_string(self, value):
        at = self.random.randrange(len(value) + 1)
        rest = value[at:] if self.random.random() < 0.5 else value[at + 1:]
        changed = value[:at] + self.character() + rest
        return changed if changed != value else value + ' '

    def change_list(self, value):
        kind = self.random.randrange(4)
        if not value or kind == 0:
            return value + [None]
        at = self.random.randrange(len(value))
        if kind == 1:
            return value[:at] + value[at + 1:]
        if kind == 2 and len(value) == 1:
            return value[0]
        return value[:at] + [self.change(value[at])] + value[at + 1:]

    def change_dict(self, value):
        kind = self.random.randrange(4)
        if not value or kind == 0:
            name = self.string()
            while name in value:
                name += 'x'
            return value | {name: None}
        chosen = self.random.choice(list(value))
        others = {name: value[name] for name in value if name != chosen}
        if kind == 1:
            return others
        if kind == 2:
            name = self.change_string(chosen)
            while name in value:
                name += 'x'
            return others | {name: value[chosen]}
        return others | {chosen: self.change(value[chosen])}


def same(a, b):
    """Whether two values are equal as JSON; True is not 1, nor is '' null."""
    return json.dumps(a, sort_keys=True, default=_plain) == json.dumps(b, sort_keys=True, default=_plain)


def _plain(value):
    """A Decimal without regard to how it is written."""
    sign, digits, exponent = value.as_tuple()
    text = ''.join(map(str, digits)).lstrip('0')
    stripped = text.rstrip('0')
    if not stripped:
        return {'number': '0'}
    return {'number': [sign, stripped, exponent + len(text) - len(stripped)]}


class Mutations:
    """Texts that are JSON no longer, or still are by chance."""

    PIECES = ('', '"', '\\', '\\u', '\\ud83d', '\\ude02', '\\u0000', '\\u0061', ',', ':', '[', ']', '{', '}', '[]', '{}', '"a":', '0', '00', '1', '-',
              '+', '.', 'e', 'E5', 'e-', '1e99999', '1e131071', '1e-16383', ' ', '\t', '\n', '\x0b', '\xa0', '\ufeff', 'null', 'nul', 'true', 'NaN',
              'Infinity', '/', '//', "'", '\x01', '\x1f', '\x7f', '\xe9', '\U0001f602', '\u0661', '\uff11')

    def __init__(self, random):
        self.random = random

    def mutate(self, text):
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            start = self.random.randrange(len(text) + 1)
            end = min(len(text), start + self.random.choice((0, 0, 1, 1, 2, 5, 20)))
            kind = self.random.randrange(4)
            if kind < 2:
                piece = self.random.choice(self.PIECES)
            elif kind == 2:
                piece = text[end:end + self.random.randrange(12)]
            else:
                piece = ''
            text = text[:start] + piece + text[end:]
        return text


def near_the_limit(number):
    """More than 15 significant digits, or smaller than normal doubles: mode jcs need
    not accept it."""
    return len(oracle.number(number).partition('e')[0].strip('-0').replace('.', '')) > 15 or 0 < abs(number) < SMALLEST_NORMAL

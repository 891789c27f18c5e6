"""A second writer of the canonical form, in arbitrary-precision decimal arithmetic.

Values are Python's: None, bool, str, list, dict, and Decimal for numbers.  A
Decimal made from text keeps every digit whatever the context, and nothing here
calculates with one.
"""

import hashlib
import json
from decimal import Decimal


def number(value):
    """The exact text of a Decimal, laid out as ECMAScript lays out a double."""
    sign, digits, exponent = value.as_tuple()
    text = ''.join(map(str, digits)).lstrip('0')
    if not text:
        return '0'
    point = len(text) + exponent
    text = text.rstrip('0')
    return '-' * sign + layout(text, point)


def layout(digits, point):
    """DIGITS x 10^(point - their number), the digits without zeros at either end."""
    if 0 < point <= 21:
        whole = digits[:point].ljust(point, '0')
        return whole + ('.' + digits[point:] if len(digits) > point else '')
    if -6 < point <= 0:
        return '0.' + '0' * -point + digits
    mantissa = digits[0] + ('.' + digits[1:] if len(digits) > 1 else '')
    return f'{mantissa}e{point - 1:+d}'


def double(value):
    """What ECMAScript prints for the double nearest to a number, or None where
    there is no finite one.  Python's repr finds the same digits: the fewest that
    are read back as this double, and of those the nearest to it."""
    nearest = float(value)
    if nearest in (float('inf'), float('-inf')):
        return None
    if nearest == 0:
        return '0'
    mantissa, _, exponent = repr(abs(nearest)).partition('e')
    whole, _, fraction = mantissa.partition('.')
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    point -= len(digits) - len(digits.lstrip('0'))
    return '-' * (nearest < 0) + layout(digits.strip('0'), point)


ESCAPES = {'"': '\\"', '\\': '\\\\', '\b': '\\b', '\t': '\\t', '\n': '\\n', '\f': '\\f', '\r': '\\r'}
ESCAPES = {chr(code): f'\\u{code:04x}' for code in range(32)} | ESCAPES


def string(value):
    return '"' + ''.join(ESCAPES.get(character, character) for character in value) + '"'


def utf16(name):
    """Sorts as the code units of UTF-16 do."""
    return name.encode('utf-16-be')


def canonical(value):
    if value is None:
        return 'null'
    if isinstance(value, bool):
        return 'true' if value else 'false'
    if isinstance(value, str):
        return string(value)
    if isinstance(value, list):
        return '[' + ','.join(map(canonical, value)) + ']'
    if isinstance(value, dict):
        return '{' + ','.join(f'{string(name)}:{canonical(value[name])}' for name in sorted(value, key=utf16)) + '}'
    return number(value)


def sha256(text):
    return hashlib.sha256(text.encode()).digest()


#
# A strict reader
#

class Refused(Exception):
    """Not JSON, or JSON that idem refuses: the kind of the refusal."""


DEPTH_MAX = 1000
WHOLE_DIGITS_MAX = 131072
FRACTION_DIGITS_MAX = 16383
EXPONENT_LIMIT = (1 << 30) - 1


def parse(text):
    """The value of a JSON text, or Refused.  Python's json does the reading; what
    it lets through is checked here."""
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse_constant,
                           object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise Refused('syntax') from error
    except RecursionError as error:
        raise Refused('depth') from error
    _check(value, 0)
    return value


def _refuse_constant(name):
    raise Refused('syntax')


def _object(pairs):
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Refused('duplicate')
    return value


def _number(text):
    """Within the limits of numeric: digits before the point, without zeros that lead,
    and digits behind it as they are written."""
    mantissa, _, exponent = text.lower().partition('e')
    whole, _, fraction = mantissa.lstrip('-').partition('.')
    shift = int(exponent or 0)
    digits = (whole + fraction).lstrip('0')
    if abs(shift) >= EXPONENT_LIMIT or len(fraction) - shift > FRACTION_DIGITS_MAX:
        raise Refused('range')
    if digits and len(digits) - len(fraction) + shift > WHOLE_DIGITS_MAX:
        raise Refused('range')
    return Decimal(text) if digits else Decimal(0)


def _check(value, depth):
    if isinstance(value, str):
        if any('\ud800' <= character <= '\udfff' for character in value):
            raise Refused('surrogate')
        if '\0' in value:
            raise Refused('nul')
    elif isinstance(value, (list, dict)):
        if depth == DEPTH_MAX:
            raise Refused('depth')
        for item in value:
            _check(item, depth + 1)
        if isinstance(value, dict):
            for item in value.values():
                _check(item, depth + 1)

"""Doubles to try: those of the number file of RFC 8785's author, every power of
two and of ten with its neighbours, and doubles by lot."""

import hashlib
import math
import os
import struct

NUMBERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../data/jcs/numbers.txt')

# SHA-256 of the first lines of the number file, as its author publishes them.
PUBLISHED = {
    1_000: 'be18b62b6f69cdab33a7e0dae0d9cfa869fda80ddc712221570f9f40a5878687',
    10_000: 'b9f7a8e75ef22a835685a52ccba7f7d6bdc99e34b010992cbc5864cd12be6892',
    100_000: '22776e6d4b49fa294a0d0f349268e5c28808fe7e0cb2bcbe28f63894e494d4c7',
    1_000_000: '49415fee2c56c77864931bd3624faad425c3c577d6d74e89a83bc725506dad16',
}


def from_bits(bits):
    return struct.unpack('>d', struct.pack('>Q', bits))[0]


def to_bits(double):
    return struct.unpack('>Q', struct.pack('>d', double))[0]


def number_file(count):
    """The first doubles of the number file: a table, the 2,000 smallest normal
    ones, then a chain of SHA-256, four doubles from each digest."""
    with open(NUMBERS) as file:
        bits = [int(line, 16) for line in file]
    bits += range(1 << 52, (1 << 52) + 2000)
    doubles = [from_bits(pattern) for pattern in bits[:count]]
    block = bytes(32)
    while len(doubles) < count:
        block = hashlib.sha256(block).digest()
        doubles += [double for double in struct.unpack('<4d', block) if double and math.isfinite(double)]
    return doubles[:count]


def file_sha256(doubles, texts):
    """SHA-256 of these lines of the number file."""
    lines = ''.join(f'{to_bits(double):x},{text}\n' for double, text in zip(doubles, texts))
    return hashlib.sha256(lines.encode()).hexdigest()


def neighbours(double):
    """The double, the one below and the one above, and both signs of them."""
    near = (math.nextafter(double, 0), double, math.nextafter(double, math.inf))
    return [sign * value for value in near if value and math.isfinite(value) for sign in (1, -1)]


def powers():
    """Every power of two and of ten in the range of doubles, with neighbours."""
    twos = (math.ldexp(1, exponent) for exponent in range(-1074, 1024))
    tens = (float(f'1e{exponent}') for exponent in range(-323, 309))
    return [double for power in (*twos, *tens) for double in neighbours(power)]


def by_lot(random, count):
    """Any bit pattern; amounts; integers about 2^53 and beyond; few digits and any exponent."""
    doubles = []
    while len(doubles) < count:
        kind = random.random()
        if kind < 0.4:
            double = from_bits(random.getrandbits(64))
        elif kind < 0.6:
            double = float(f'{random.randrange(10 ** random.randrange(1, 18))}e-{random.randrange(0, 9)}')
        elif kind < 0.8:
            double = float(random.randrange(1 << random.randrange(50, 80)))
        else:
            double = float(f'{random.randrange(10 ** random.randrange(1, 18))}e{random.randrange(-345, 300)}')
        if math.isfinite(double):
            doubles.append(double)
    return doubles

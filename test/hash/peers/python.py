"""Canonical JSON by rfc8785: see peers/README.md for lines and answers.

Usage: python.py float|int

How integers are read: as doubles, which is what RFC 8785 makes of them, or as
Python reads them, which is what callers of rfc8785 will do."""

import json
import sys

import rfc8785

read = {'float': float, 'int': int}[sys.argv[1]]
for line in sys.stdin.buffer:
    try:
        text = line[:-1].replace(b'\0', b'\n').decode()
        answer = b'=' + rfc8785.dumps(json.loads(text, parse_int=read))
    except (ValueError, RecursionError) as error:
        answer = b'!' + repr(error).encode()
    sys.stdout.buffer.write(answer + b'\n')

"""Canonical JSON by rfc8785: see peers/README.md for lines and answers.

A number of JSON is a double for RFC 8785, so integers are read as that too;
rfc8785 is defined for Python's integers as well, and refuses large ones."""

import json
import sys

import rfc8785

for line in sys.stdin.buffer:
    try:
        text = line[:-1].replace(b'\0', b'\n').decode()
        answer = b'=' + rfc8785.dumps(json.loads(text, parse_int=float))
    except (ValueError, RecursionError) as error:
        answer = b'!' + repr(error).encode()
    sys.stdout.buffer.write(answer + b'\n')

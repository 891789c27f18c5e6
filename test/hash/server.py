"""The functions of the extension, called for many texts at a time."""

import sys
from typing import NamedTuple

import psycopg

# One call of each function, and what came of it.  Texts come as bytes, so that
# no encoding of the client is in the way.
SETUP = """
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
CREATE TEMP TABLE input (n bigint, body bytea);

CREATE FUNCTION pg_temp.from_text(body bytea, mode text, OUT canonical text, OUT hash bytea,
	OUT code text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
DECLARE
	body text := convert_from(body, getdatabaseencoding());
BEGIN
	hash := idem_hash(body, mode);
	canonical := idem_canonical(body, mode);
EXCEPTION WHEN others THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
END
$$;

CREATE FUNCTION pg_temp.from_jsonb(body bytea, mode text, OUT canonical text, OUT hash bytea,
	OUT code text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
DECLARE
	body jsonb;
BEGIN
	body := convert_from(from_jsonb.body, getdatabaseencoding());
	hash := idem_hash(body, mode);
	canonical := idem_canonical(body, mode);
EXCEPTION WHEN others THEN
	GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
END
$$;
"""


class Result(NamedTuple):
    canonical: str                      # None when it was refused
    hash: bytes                         # None when that was refused
    code: str                           # the error
    message: str
    detail: str
    digest: bytes                       # pgcrypto's SHA-256 of the canonical text as UTF-8


class Server:
    def __init__(self, conninfo):
        self.conninfo = conninfo
        self.connection = psycopg.connect(conninfo, autocommit=True, client_encoding='UTF8')
        self.connection.execute(SETUP)

    def database(self, encoding):
        """Another database of the same server."""
        name = f'test_{encoding.lower()}'
        self.connection.execute(f'DROP DATABASE IF EXISTS {name}')
        self.connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        return Server(f'{self.conninfo} dbname={name}')

    def call(self, texts, entry='text', mode='exact'):
        """What idem_canonical and idem_hash make of each text, str or bytes."""
        with self.connection.cursor() as cursor:
            cursor.execute('TRUNCATE input')
            with cursor.copy('COPY input FROM STDIN') as copy:
                for number, text in enumerate(texts):
                    copy.write_row((number, text.encode() if isinstance(text, str) else text))
            cursor.execute(f"""
                SELECT convert_to(r.canonical, 'UTF8'), r.hash, r.code,
                    convert_to(r.message, getdatabaseencoding()), convert_to(r.detail, getdatabaseencoding()),
                    digest(convert_to(r.canonical, 'UTF8'), 'sha256')
                FROM (SELECT * FROM input ORDER BY n OFFSET 0) AS input, pg_temp.from_{entry}(body, %s) AS r
                ORDER BY n""", (mode,))
            return [Result(row[0] if row[0] is None else row[0].decode(), row[1], row[2], *map(said, row[3:5]), row[5]) for row in cursor]

    def rows(self, sql, *arguments):
        return self.connection.execute(sql, arguments).fetchall()


def said(words):
    """An error's words, with whatever bytes the server quotes in them."""
    return (words or b'').decode(errors='replace')


class Report:
    """Counts what was looked at and what was wrong, and shows the first few."""

    SHOWN = 5

    def __init__(self):
        self.checked = self.wrong = 0

    def check(self, right, what, *shown):
        self.checked += 1
        if not right:
            self.wrong += 1
            if self.wrong <= self.SHOWN:
                print(what, *(shorten(repr(value)) for value in shown), sep='\n    ')

    def finish(self, counted):
        print(f'{self.checked} {counted}, {self.wrong} wrong')
        sys.exit(1 if self.wrong or not self.checked else 0)


def shorten(text):
    return text if len(text) <= 400 else f'{text[:200]} ... {text[-200:]}'

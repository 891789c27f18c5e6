"""How the story looks: paragraphs, small tables, colours on a terminal only."""

import os
import shutil
import sys
import textwrap

IS_TERMINAL = sys.stdout.isatty()
COLOURED = IS_TERMINAL and not os.environ.get('NO_COLOR') and os.environ.get('TERM', 'dumb') != 'dumb'
WIDTH = min(100, shutil.get_terminal_size().columns) if IS_TERMINAL else 100
INDENT = '   '

sys.stdout.reconfigure(errors='replace')  # a terminal that knows no arrows still tells the story

CODES = {'bold': '1', 'dim': '2', 'red': '31', 'green': '32', 'yellow': '33', 'blue': '34', 'cyan': '36'}


def paint(style, text):
    return f'\x1b[{CODES[style]}m{text}\x1b[0m' if COLOURED else text


def line(text=''):
    print(text, flush=True)


def title(text, below):
    line()
    line(paint('bold', text))
    line(paint('dim', '━' * WIDTH))
    say(below, indent='')


def scene(number, text):
    line()
    line(paint('bold', paint('cyan', f'{number}  {text}')))
    line()


def say(text, indent=INDENT):
    for part in textwrap.wrap(' '.join(text.split()), WIDTH, initial_indent=indent, subsequent_indent=indent):
        line(part)


def clip(text, width):
    return text if len(text) <= width else text[:width - 1] + '…'


def wrap(text):
    return textwrap.wrap(text, WIDTH - len(INDENT) - 2, break_on_hyphens=False)


def request(who, text):
    line()
    for number, part in enumerate(wrap(f'{who}: {text}')):
        line(INDENT + (paint('blue', '→ ') if number == 0 else '  ') + part)


def answer(status, reason, headers, body):
    """A line for the status and what steers the client, and the body as it came."""
    style = 'green' if status < 400 else 'yellow'
    told = ''.join(f'   {name.title()}: {value}' for name, value in headers)
    line(INDENT + paint('blue', '← ') + paint(style, f'{status} {reason}') + told)
    for part in wrap(body):
        line(INDENT + '  ' + paint('dim', part))


def event(text):
    """Something that happens to the machine rather than to a request."""
    line()
    line(INDENT + paint('red', '✗ ') + text)


def note(text):
    for part in wrap(text):
        line(INDENT + '  ' + part)


def check(text):
    line(INDENT + paint('green', '✓ ') + text)


def table(caption, about, columns, rows, marks=()):
    """A small table; marks holds a style or None for each row."""
    cells = [[('' if cell is None else str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells)] if cells else list(map(len, columns))
    edge = INDENT + '  '
    line()
    about = f'  {about}' if about else ''
    line(edge + paint('bold', caption) + paint('dim', clip(about, WIDTH - len(edge + caption))))
    line(edge + paint('dim', clip('  '.join(map(str.ljust, columns, widths)).rstrip(), WIDTH - len(edge))))
    for number, row in enumerate(cells):
        text = clip('  '.join(map(str.ljust, row, widths)).rstrip(), WIDTH - len(edge))
        style = marks[number] if number < len(marks) else None
        line(edge + (paint(style, text) if style else text))
    if not cells:
        line(edge + paint('dim', '(none)'))


def failure(step, error):
    line()
    line(paint('red', f'Failed in {step}.'))
    kind = '' if type(error).__name__ == 'Failed' else f'{type(error).__name__}: '
    say(f'{kind}{error}')


def log_tail(name, lines):
    line()
    line(INDENT + paint('bold', name) + paint('dim', '  (end of the log)'))
    for text in lines:
        line(INDENT + '  ' + text)

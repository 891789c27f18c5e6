// Canonical JSON by JSON.stringify or by canonicalize: see peers/README.md for lines and answers.
//
// Usage: node node.mjs stringify|canonicalize

import canonicalize from 'canonicalize';
import fs from 'fs';

const write = { stringify: JSON.stringify, canonicalize }[process.argv[2]];
const lines = fs.readFileSync(0, 'utf8').split('\n');

function answer(line) {
  try {
    return '=' + write(JSON.parse(line.replaceAll('\0', '\n')));
  } catch (error) {
    return '!' + error.message.replaceAll('\n', ' ');
  }
}

lines.pop();
fs.writeFileSync(1, lines.map((line) => answer(line) + '\n').join(''));

//! Canonical JSON by serde_json_canonicalizer: see README.md for lines and answers.
//!
//! Usage: peer lines    canonicalizes lines of standard input
//!        peer hash     reads lines "TIMES FILE", parses, canonicalizes and hashes the file
//!                      so many times, and answers with the digest

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::hint::black_box;
use std::io::{self, BufRead, Write};

fn canonical(text: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let value: Value = serde_json::from_slice(text)?;
    serde_json_canonicalizer::to_vec(&value)
}

fn answer(line: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = line.iter().map(|&byte| if byte == 0 { b'\n' } else { byte }).collect();
    match canonical(&text) {
        Ok(canonical) => [b"=", canonical.as_slice()].concat(),
        Err(error) => format!("!{error}").into_bytes(),
    }
}

fn lines() -> io::Result<()> {
    let mut output = io::BufWriter::new(io::stdout().lock());
    for line in io::stdin().lock().split(b'\n') {
        output.write_all(&answer(&line?))?;
        output.write_all(b"\n")?;
    }
    output.flush()
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash() -> Result<(), Box<dyn std::error::Error>> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (times, file) = line.split_once(' ').ok_or("TIMES FILE expected")?;
        let text = std::fs::read(file)?;
        let mut digest = Sha256::digest(b"");
        for _ in 0..times.parse::<u32>()? {
            digest = Sha256::digest(canonical(black_box(&text))?);
            black_box(&digest);
        }
        println!("{}", hex(&digest));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("lines") => Ok(lines()?),
        Some("hash") => hash(),
        _ => Err("usage: peer lines|hash".into()),
    }
}

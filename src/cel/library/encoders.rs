//! Base64. Kubernetes 1.37 does not have it.

use crate::library::Library;
use crate::value::{Blob, Fault, Value};

pub(crate) const LIBRARY: Library = Library {
    declarations: "
        base64_decode_string: base64.decode(string) -> bytes
        base64_encode_bytes: base64.encode(bytes) -> string",
    runs: &[
        ("base64.decode", |_, args| match args {
            [Value::String(text)] => match decode(text) {
                Some(bytes) => Ok(Value::Bytes(Blob::Shared(bytes.into()))),
                None => Err(Fault::error("illegal base64 data")),
            },
            _ => Err(Fault::no_overload()),
        }),
        ("base64.encode", |_, args| match args {
            [Value::Bytes(bytes)] => Ok(Value::text(encode(bytes))),
            _ => Err(Fault::no_overload()),
        }),
    ],
    types: &[],
};

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Reads base64 with or without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut made = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let digit = LETTERS.iter().position(|letter| *letter == byte)?;
        bits = (bits << 6 | u32::try_from(digit).ok()?) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            made.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    Some(made)
}

fn encode(bytes: &[u8]) -> String {
    let mut made = String::with_capacity(bytes.len() * 4 / 3 + 4);
    for part in bytes.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for number in 0..4 {
            let digit = (bits >> (18 - 6 * number) & 63) as usize;
            let letter = LETTERS.get(digit).copied().unwrap_or(b'=');
            made.push(char::from(if number > part.len() { b'=' } else { letter }));
        }
    }
    made
}

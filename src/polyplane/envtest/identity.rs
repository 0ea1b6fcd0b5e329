//! The name of the server in upstream's metrics, which is made of the machine's name.

use polyplane_auth::digest_of;

const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Bytes of the hash that are in the name.
const HASH_BYTES: usize = 16;

/// Returns the name.
pub(super) fn of_server() -> String {
    let machine = hostname::get().unwrap_or_default();
    of_machine(machine.as_encoded_bytes())
}

fn of_machine(machine: &[u8]) -> String {
    let mut text = Vec::new();
    for part in [machine, b"kube-apiserver"] {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        text.extend_from_slice(&length.to_be_bytes());
        text.extend_from_slice(part);
    }
    format!("apiserver-{}", base32(&digest_of(text)[..HASH_BYTES]))
}

/// Returns bytes as base 32 writes them, in lower-case letters and without padding.
fn base32(bytes: &[u8]) -> String {
    let bits = bytes
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |place| (byte >> place) & 1));
    let bits: Vec<u8> = bits.collect();
    let digits = bits.chunks(5).map(|chunk| {
        let high = chunk.iter().fold(0, |number, bit| (number << 1) | bit);
        char::from(DIGITS[usize::from(high << (5 - chunk.len()))])
    });
    digits.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_auth::hex;

    #[test]
    fn the_name_is_that_of_upstream() {
        // The hash that upstream's own tests expect of a machine with this name.
        let hash = hex(&digest_of(of_machine(b"testAPIServerID")));
        let expected = "3c607df3b2bf22c9d9f01d5314b4bbf411c48ef43ff44ff29b1d55b41367c795";
        assert_eq!(hash, expected);
    }
}

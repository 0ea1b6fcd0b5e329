//! Loopback addresses that belong to one run: 254 of them, so that several rings on one machine
//! never meet.
//!
//! This module chooses the addresses. A block is taken by listening at its first address and
//! released by closing that listener, so a killed run releases its block too. It does not know what
//! uses an address.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use anyhow::{Context, Result, bail};

/// The port on which the owner of a block listens. Nothing else of a run uses it.
const TAKEN_PORT: u16 = 24024;
/// The number of blocks. Each has 256 addresses of 127.64.0.0/10.
const BLOCKS: u16 = 1 << 14;

/// The addresses `127.x.y.1` to `127.x.y.254`, which no other run has. Dropping this releases them.
#[derive(Debug)]
pub struct Block {
    number: u16,
    _taken: TcpListener,
}

impl Block {
    /// Takes any free block.
    ///
    /// # Errors
    /// Returns an error if no block is free, or this machine has no such addresses.
    pub fn take() -> Result<Self> {
        // The hasher is randomly seeded, so the number differs from that of other runs.
        let any = RandomState::new().build_hasher().finish();
        let first = u16::try_from(any % u64::from(BLOCKS)).context("below the limit")?;
        for number in (first..BLOCKS).chain(0..first) {
            match TcpListener::bind((address(number, 1), TAKEN_PORT)) {
                Ok(taken) => {
                    return Ok(Self {
                        number,
                        _taken: taken,
                    });
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error).context("no address of 127.64.0.0/10"),
            }
        }
        bail!("every block of 127.64.0.0/10 is taken")
    }

    /// Returns the address of the balancer, of which a run has one.
    pub fn first(&self) -> Ipv4Addr {
        address(self.number, 1)
    }

    /// Returns the address of the pod or member number `place`, counted from 1.
    ///
    /// # Errors
    /// Returns an error if the block has no such address.
    pub fn nth(&self, place: u8) -> Result<Ipv4Addr> {
        let last = place.checked_add(1).filter(|last| (2..255).contains(last));
        let last = last.with_context(|| format!("a block has no address {place}"))?;
        Ok(address(self.number, last))
    }
}

/// Returns unused ports of this address, all different.
///
/// # Errors
/// Returns an error if the system has no free port.
pub fn free_ports(address: impl Into<IpAddr>, count: usize) -> Result<Vec<u16>> {
    let address = address.into();
    let taken: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind((address, 0)))
        .collect::<std::io::Result<_>>()?;
    let ports = taken.iter().map(|taken| Ok(taken.local_addr()?.port()));
    ports.collect()
}

fn address(number: u16, last: u8) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(127, 64 | high, low, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_never_have_an_address_in_common_and_a_dropped_one_is_free() -> Result<()> {
        let (one, other) = (Block::take()?, Block::take()?);
        assert_ne!(one.first(), other.first());
        let taken = one.first();
        assert!(
            TcpListener::bind((taken, TAKEN_PORT)).is_err(),
            "it is taken"
        );
        drop(one);
        TcpListener::bind((taken, TAKEN_PORT)).context("it was given back")?;
        Ok(())
    }

    #[test]
    fn blocks_stay_inside_their_network_and_end_before_broadcast() -> Result<()> {
        assert_eq!(address(0, 1), Ipv4Addr::new(127, 64, 0, 1));
        assert_eq!(address(BLOCKS - 1, 9), Ipv4Addr::new(127, 127, 255, 9));
        let block = Block::take()?;
        assert_ne!(block.nth(1)?, block.first());
        assert_eq!(block.nth(253)?.octets()[3], 254);
        assert!(block.nth(254).is_err() && block.nth(0).is_err());
        Ok(())
    }
}

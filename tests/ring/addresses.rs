//! Addresses of loopback that belong to one run: 254 of them, so that several rings on one machine
//! never meet.
//!
//! Owns the choice. A block is taken by listening at its first address and given back by closing
//! that, so that one whose run was killed is free as well. Must not know what uses an address.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use anyhow::{Context, Result, bail};

/// Where a taken block listens; nothing else of a run does.
const TAKEN_PORT: u16 = 24024;
/// The number of blocks. Each has 256 addresses of 127.64.0.0/10.
const BLOCKS: u16 = 1 << 14;

/// Addresses `127.x.y.1` to `127.x.y.254` that nobody else has. Dropping it gives them back.
#[derive(Debug)]
pub struct Block {
    number: u16,
    _taken: TcpListener,
}

impl Block {
    /// Takes any that is free.
    ///
    /// # Errors
    /// When none is, or this machine has no such addresses.
    pub fn take() -> Result<Self> {
        // A hasher that nobody feeds gives a number that no other run has.
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

    /// Returns the address of what stands once in a run: the balancer.
    pub fn first(&self) -> Ipv4Addr {
        address(self.number, 1)
    }

    /// Returns the address of the `place`-th of what comes and goes, counted from 1.
    ///
    /// # Errors
    /// When the block has no more.
    pub fn nth(&self, place: u8) -> Result<Ipv4Addr> {
        let last = place.checked_add(1).filter(|last| (2..255).contains(last));
        let last = last.with_context(|| format!("a block has no address {place}"))?;
        Ok(address(self.number, last))
    }
}

/// Ports of this address that nobody uses now, all different.
///
/// # Errors
/// When the system has none.
pub fn free_ports(address: IpAddr, count: usize) -> Result<Vec<u16>> {
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

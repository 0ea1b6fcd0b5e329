//! The wire format: tags, numbers, lengths and groups.
//!
//! Owns the bounds of fields. Groups are an old form of messages that no kind has: they are passed
//! over.

use super::ProtoError;

/// The wire types of groups.
const GROUP: u64 = 3;
const GROUP_END: u64 = 4;

/// One value on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'a> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
    /// A group, which was passed over.
    Group,
    /// Four bytes, which no kind has.
    Fixed32,
}

impl Wire<'_> {
    /// Returns the number of the wire type.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) => 2,
            Self::Group => GROUP,
            Self::Fixed32 => 5,
        }
    }
}

/// Reads the fields of a message one after the other.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads a number of variable length.
    pub(super) fn varint(&mut self) -> Result<u64, ProtoError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(ProtoError::Truncated)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtoError::Overflow)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], ProtoError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(ProtoError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// Returns the next field's number and value; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, ProtoError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtoError::Tag(tag))?;
        if number == 0 {
            return Err(ProtoError::Tag(tag));
        }
        let wire = if tag & 7 == GROUP {
            self.pass_group()?;
            Wire::Group
        } else {
            self.value(tag)?
        };
        Ok(Some((number, wire)))
    }

    /// Reads the value behind a tag that does not begin a group.
    fn value(&mut self, tag: u64) -> Result<Wire<'a>, ProtoError> {
        Ok(match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| ProtoError::Overflow)?;
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            _ => return Err(ProtoError::Tag(tag)),
        })
    }

    /// Passes over what a group has behind its first tag, up to its end. As upstream, beginnings and
    /// ends are only counted, and the numbers of fields in a group do not matter.
    fn pass_group(&mut self) -> Result<(), ProtoError> {
        let mut open = 1usize;
        while open > 0 {
            let tag = self.varint()?;
            match tag & 7 {
                GROUP => open += 1,
                GROUP_END => open -= 1,
                _ => {
                    self.value(tag)?;
                }
            }
        }
        Ok(())
    }
}

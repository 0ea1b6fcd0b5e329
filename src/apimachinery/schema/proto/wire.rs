//! The wire format: tags, numbers, lengths and groups.
//!
//! Owns the bounds of fields and the errors about them. Groups are an old form of messages that no kind
//! has: they are passed over.

use super::{ProtoError, wrong};

/// The wire types.
pub(super) const VARINT: u64 = 0;
pub(super) const FIXED64: u64 = 1;
pub(super) const BYTES: u64 = 2;
const GROUP: u64 = 3;
const GROUP_END: u64 = 4;
const FIXED32: u64 = 5;

/// What stands before the value of a field: its number and its wire type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head(u64);

impl Head {
    /// Returns the field's number. As in upstream, it has 32 bits, whatever is on the wire.
    pub(super) fn number(self) -> u32 {
        (self.0 >> 3) as u32
    }

    /// Returns the wire type.
    pub(super) fn wire(self) -> u64 {
        self.0 & 7
    }

    /// Checks that the field `name` has this wire type.
    fn check(self, wire: u64, name: &str) -> Result<(), ProtoError> {
        if self.wire() == wire {
            return Ok(());
        }
        Err(wrong(self.wire(), name))
    }
}

/// One value on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'a> {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Fixed64(u64),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
}

impl Wire<'_> {
    /// Returns the number of the wire type.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Varint(_) => VARINT,
            Self::Fixed64(_) => FIXED64,
            Self::Bytes(_) => BYTES,
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

    /// Reads a length and as many bytes. As in upstream, a length is a number with a sign.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], ProtoError> {
        let length = self.varint()?;
        // Upstream adds the length to its position, so that the greatest ones become negative. Where it is does not
        // matter to the greatest one of all.
        if length.cast_signed() < 0 || length.cast_signed() == i64::MAX {
            return Err(ProtoError::NegativeLength);
        }
        let message = self.0;
        let (taken, rest) = usize::try_from(length)
            .ok()
            .and_then(|length| message.split_at_checked(length))
            .ok_or(ProtoError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtoError> {
        let message = self.0;
        let (taken, rest) = message
            .split_first_chunk::<N>()
            .ok_or(ProtoError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Returns the head of the next field of a message whose type Go calls `name`; `None` at the end.
    pub(super) fn next(&mut self, name: &str) -> Result<Option<Head>, ProtoError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let head = Head(self.varint()?);
        if head.wire() == GROUP_END {
            return Err(ProtoError::EndGroup(name.to_owned()));
        }
        let number = head.number().cast_signed();
        if number <= 0 {
            return Err(ProtoError::Tag {
                message: name.to_owned(),
                number,
                tag: head.0,
            });
        }
        Ok(Some(head))
    }

    /// Reads an entry of a map or packed numbers behind the head of their field.
    pub(super) fn part(&mut self) -> Result<Part<'a>, ProtoError> {
        let mut rest = Reader(self.0);
        rest.varint()?;
        self.bytes()?;
        Ok(Part {
            rest,
            behind: self.0.len(),
        })
    }

    /// Reads the value behind the head of a field that is no group and has not four bytes.
    pub(super) fn value(&mut self, head: Head) -> Result<Wire<'a>, ProtoError> {
        Ok(match head.wire() {
            VARINT => Wire::Varint(self.varint()?),
            FIXED64 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            BYTES => Wire::Bytes(self.bytes()?),
            other => return Err(ProtoError::IllegalWire(other)),
        })
    }

    /// Reads the number behind the head of the field `name`.
    pub(super) fn varint_of(&mut self, head: Head, name: &str) -> Result<u64, ProtoError> {
        head.check(VARINT, name)?;
        self.varint()
    }

    /// Reads the bytes behind the head of the field `name`.
    pub(super) fn bytes_of(&mut self, head: Head, name: &str) -> Result<&'a [u8], ProtoError> {
        head.check(BYTES, name)?;
        self.bytes()
    }

    /// Passes over the value behind a head, which may begin a group. As upstream, beginnings and ends
    /// of groups are only counted, and the numbers of fields in a group do not matter.
    pub(super) fn skip(&mut self, mut head: Head) -> Result<(), ProtoError> {
        let mut open = 0usize;
        loop {
            match head.wire() {
                GROUP => open += 1,
                GROUP_END => open = open.checked_sub(1).ok_or(ProtoError::GroupEnd)?,
                FIXED32 => {
                    self.array::<4>()?;
                }
                _ => {
                    self.value(head)?;
                }
            }
            if open == 0 {
                return Ok(());
            }
            head = Head(self.varint()?);
        }
    }
}

/// A part of a message: an entry of a map, or packed numbers. As in upstream's generated code, the end of packed
/// numbers only decides where reading stops. Unlike there, no key or value reaches beyond its entry: what lies
/// there would be read again, and in maps within maps again for each of them, which takes for ever.
pub(super) struct Part<'a> {
    /// The part, and all that follows it in the message.
    rest: Reader<'a>,
    /// Number of bytes of the message behind the part.
    behind: usize,
}

impl<'a> Part<'a> {
    /// Returns the head of the next field of an entry; `None` at the end. Upstream does not check these.
    pub(super) fn next_head(&mut self) -> Result<Option<Head>, ProtoError> {
        let number = self.next_number()?;
        Ok(number.map(Head))
    }

    /// Returns the next number; `None` at the end.
    pub(super) fn next_number(&mut self) -> Result<Option<u64>, ProtoError> {
        if self.rest.0.len() <= self.behind {
            return Ok(None);
        }
        self.rest.varint().map(Some)
    }

    /// Reads the bytes of a key or a value, whatever wire type it has.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], ProtoError> {
        let bytes = self.rest.bytes()?;
        self.check_end().map(|()| bytes)
    }

    /// Passes over a field of an entry that is neither key nor value.
    pub(super) fn skip(&mut self, head: Head) -> Result<(), ProtoError> {
        self.rest.skip(head)?;
        self.check_end()
    }

    fn check_end(&self) -> Result<(), ProtoError> {
        match self.rest.0.len() < self.behind {
            true => Err(ProtoError::Truncated),
            false => Ok(()),
        }
    }

    /// Returns what was not read, which may begin behind the end of the part.
    pub(super) fn into_rest(self) -> Reader<'a> {
        self.rest
    }
}

//! Documents as they are kept: compressed.

use std::io::Write as _;
use std::sync::Weak;
use std::time::SystemTime;

use aws_lc_rs::digest;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderValue;
use polyplane_registry::kinds::custom::CustomSchema;

use super::making::Held;
use super::node::Node;
use super::proto::Pieces;
use crate::documents::HeapSize;
use crate::documents::discovery::hexadecimal;

/// A document, compressed, and the hash of its plain form, or of another form of the document.
pub(crate) struct Document {
    pub(super) media_type: &'static str,
    pub(super) hash: String,
    pub(super) gzip: Bytes,
    /// Bytes of the plain form.
    pub(super) length: usize,
    pub(super) made: SystemTime,
    /// The schemas of the kinds that objects define, as far as it was made of them.
    schemas: Vec<Weak<dyn CustomSchema>>,
}

impl HeapSize for Document {
    fn bytes(&self) -> usize {
        let schemas = self.schemas.len() * size_of::<Weak<dyn CustomSchema>>();
        self.hash.len() + self.gzip.len() + schemas
    }

    fn is_outdated(&self) -> bool {
        let mut schemas = self.schemas.iter();
        schemas.any(|schema| schema.strong_count() == 0)
    }
}

impl Document {
    pub(crate) fn etag(&self) -> HeaderValue {
        HeaderValue::try_from(format!("\"{}\"", self.hash)).expect("hexadecimal is ASCII")
    }
}

/// Hashes and compresses a document piece by piece, so that its plain form is never in memory as a whole.
pub(super) struct Packer {
    digest: digest::Context,
    gzip: GzEncoder<Vec<u8>>,
    length: usize,
}

impl Packer {
    /// Packs a document as JSON.
    pub(super) fn json(document: Node<'_>) -> Self {
        let (mut packer, mut last) = (Self::new(), Vec::new());
        document.write_json(&mut last, &mut |piece: &[u8]| packer.write(piece));
        packer.write(&last);
        packer
    }

    /// Packs a document that is encoded already. It counts with at least its length until it is packed.
    pub(super) fn pieces(document: Pieces, held: &mut Held) -> Self {
        if let Some(memory) = &mut held.memory {
            memory.resize(memory.bytes().max(document.bytes()));
        }
        let mut packer = Self::new();
        for piece in document.into_parts() {
            packer.write(&piece);
        }
        packer
    }

    fn new() -> Self {
        Self {
            digest: digest::Context::new(&digest::SHA512),
            gzip: GzEncoder::new(Vec::new(), Compression::fast()),
            length: 0,
        }
    }

    fn write(&mut self, piece: &[u8]) {
        self.digest.update(piece);
        let written = self.gzip.write_all(piece);
        written.expect("writing into memory does not fail");
        self.length += piece.len();
    }

    /// Returns the document with the hash of what was packed.
    pub(super) fn finish(self, media_type: &'static str, held: Held) -> Document {
        let hash = hexadecimal(&self.digest.clone().finish());
        self.finish_as(media_type, hash, held)
    }

    /// Returns the document with the hash of another form of it.
    pub(super) fn finish_as(self, media_type: &'static str, hash: String, held: Held) -> Document {
        let packed = self.gzip.finish();
        let mut packed = packed.expect("writing into memory does not fail");
        packed.shrink_to_fit();
        let gzip = match held.memory {
            Some(mut memory) => {
                memory.resize(packed.len());
                memory.keep(packed)
            }
            None => packed.into(),
        };
        Document {
            media_type,
            hash,
            gzip,
            length: self.length,
            made: SystemTime::now(),
            schemas: held.schemas,
        }
    }
}

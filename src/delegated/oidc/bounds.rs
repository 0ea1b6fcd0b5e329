//! What is kept of an issuer, and what a token may cause. Less for the issuers of a control plane, because
//! there may be very many of these, and who names them is not trusted.

use polyplane_auth::jws::TOKEN_BYTES_MAX;

/// The bounds of one issuer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Tokens that are known to prove somebody, in each of two halves. Each takes about 1 KiB.
    pub proven_half_max: usize,
    /// Tokens that are known to prove nobody, in each of two halves.
    pub refused_half_max: usize,
    /// Bytes of the longest token of which anything is kept.
    pub kept_bytes_max: usize,
    /// Bytes of the longest document. Key sets have a few kilobytes.
    pub document_bytes_max: usize,
    /// Whether a token with an unknown key waits for a look-up although other keys are known. It would
    /// tell a stranger by its time that a control plane exists.
    pub waits_for_unknown_keys: bool,
}

impl Bounds {
    /// Those of an issuer that the operator names.
    pub(super) const OPERATOR: Self = Self {
        proven_half_max: 2048,
        refused_half_max: 2048,
        kept_bytes_max: TOKEN_BYTES_MAX,
        document_bytes_max: 1 << 20,
        waits_for_unknown_keys: true,
    };
    /// Those of an issuer that a control plane names: at most 300 KiB are kept.
    pub(super) const PLANE: Self = Self {
        proven_half_max: 32,
        refused_half_max: 4,
        kept_bytes_max: 4096,
        document_bytes_max: 64 << 10,
        waits_for_unknown_keys: false,
    };
}

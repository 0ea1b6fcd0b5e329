//! What a decoder keeps of what was sent, and what it returns.

use super::Problem;

/// The treatment of lists and maps without items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Empties {
    /// They stay empty lists and maps, if the field shows them.
    #[default]
    Keep,
    /// They become `null`, as they do in a store that keeps protobuf.
    Null,
    /// As [`Self::Null`], but those stay that say something to whoever prepares the object: see
    /// [`Field::empty_is_said`](crate::schema::Field::empty_is_said) and
    /// [`Field::empties_count`](crate::schema::Field::empties_count).
    NullUnlessSaid,
    /// As [`Self::Keep`]. In addition everything stays that Go's decoded structs remember of a list
    /// that is compared as a whole, until they are stored: empty lists and maps that the field does
    /// not show, and quantities as they were written.
    AsSent,
}

/// The numbers that a field for whole numbers takes, and whose texts errors have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numbers {
    /// Those that are written without fraction and exponent, as in JSON that upstream decodes.
    #[default]
    AsWritten,
    /// Those whose value is whole, as in trees that upstream converts: results of strategic merge
    /// patches and applies.
    ByValue,
}

/// The result of decoding with [`Empties::AsSent`].
#[derive(Debug, Default)]
pub struct AsSent {
    /// The complaints of strict decoding.
    pub problems: Vec<Problem>,
    /// What the tree has beyond its stored form.
    pub beyond: Beyond,
}

/// What a decoded tree has that its stored form does not have. Each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Beyond {
    /// Nothing.
    #[default]
    Nothing,
    /// Empty lists and maps, and quantities as they were written, which matter to a comparison.
    Compared,
    /// Empty lists and maps that say something: see [`Empties::NullUnlessSaid`].
    Said,
}

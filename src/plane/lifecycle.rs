//! The ways in which a plane is opened, handed over and ended in this process.
//!
//! [`params`] has the parameters of opening a plane, [`load`] reads its state from the store,
//! [`export`] and [`import`] hand it over to another replica. [`tenure`] pauses and ends it.

pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod load;
pub(crate) mod params;
pub(crate) mod tenure;

//! Random sequences of writes by three managers, played on a plane and on the reference: all
//! answers must be equal, the owners of fields included.
//!
//! A sequence follows from its seed alone ([`sequence`]); its bodies are variants ([`vary`]) of the
//! example objects of every built-in kind ([`kinds`]). [`play`] sends it to both servers and stops
//! at the first difference, [`reduce`] makes a sequence that differs as short as possible, and
//! [`features`] counts what sequences contain, so that a run that tests nothing does not pass.

pub mod features;
pub mod kinds;
pub mod play;
pub mod reduce;
pub mod sequence;
pub mod vary;

//! The shared parts of the integration tests and the load generator: kubeconfigs, HTTPS requests to
//! the endpoint that one names, finding and starting the programs under test, rendering the chart
//! and reading its Deployment, and the comparison harness (scenario, run, symbols, normalize,
//! compare).
//!
//! Invariant: nothing here knows the server's crates. An endpoint is an address and a credential,
//! so the same code talks to a plane and to the reference.

pub mod chart;
pub mod checker;
pub mod client;
pub mod compare;
pub mod connection;
pub mod cut;
pub mod deployment;
pub mod dice;
pub mod drop_in;
pub mod fixture;
pub mod frozen;
pub mod golden;
pub mod history;
pub mod kubeconfig;
pub mod kubectl;
pub mod normalize;
pub mod outside;
pub mod process;
pub mod programs;
pub mod protobuf;
pub mod published;
pub mod python;
pub mod recorded;
pub mod ring;
pub mod rows;
pub mod run;
pub mod scenario;
pub mod sequences;
pub mod session;
pub mod settings;
pub mod site;
pub mod symbols;

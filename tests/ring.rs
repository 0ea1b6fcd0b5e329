//! Several real servers on real stores, and what can be done to them: the ring harness.
//!
//! Owns processes, addresses, faults and load. What is started here is ended, by its id, when its
//! value is dropped. Must not know the server's crates, nor judge a run: that is the checker's.
//!
//! | module | what it is |
//! | --- | --- |
//! | `process` | one child process and the signals it gets |
//! | `addresses` | addresses of loopback that no other run has |
//! | `network` | network namespaces and partitions between them |
//! | `etcd` | a store of one or three members |
//! | `replica` | one `polyplane serve`, or whatever else a launch says |
//! | `balancer` | haproxy as the Service in front |
//! | `controller` | a Deployment's moves: scale, rolling update, pods that end |
//! | `client` | requests and watches of the run's objects, each recorded |
//! | `collection` | a watch over one collection of a plane, for objects that are not the run's |
//! | `load` | an open-loop mix of them over many planes |
//! | `judged` | how a scenario ends: printed, checked |
//! | `figures` | what a run's numbers look like in one line |
//! | `stalls` | when the machine of the test ran nobody |
//! | `setup` | all of it put together |

pub mod addresses;
pub mod balancer;
pub mod client;
pub mod collection;
pub mod controller;
pub mod etcd;
pub mod figures;
pub mod judged;
pub mod load;
pub mod network;
pub mod process;
pub mod replica;
pub mod setup;
pub mod stalls;

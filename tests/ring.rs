//! The ring harness: several real servers on real stores, and the faults that tests inject.
//!
//! It owns processes, addresses, faults and load. A process is ended, by its id, when its value is
//! dropped. The harness does not know the server's crates, and leaves judging a run to the checker.
//!
//! | module | content |
//! | --- | --- |
//! | `process` | one child process and its signals |
//! | `addresses` | addresses of loopback that no other run has |
//! | `network` | network namespaces and partitions between them |
//! | `etcd` | a store of one or three members |
//! | `replica` | one `polyplane serve`, or another command that a launch names |
//! | `balancer` | haproxy as the Service in front |
//! | `controller` | a Deployment's moves: scale, rolling update, pods that end |
//! | `client` | requests and watches of the run's objects, each recorded |
//! | `collection` | a watch over one collection of a plane, for objects that are not the run's |
//! | `load` | an open-loop mix of requests and watches over many planes |
//! | `judged` | the end of a scenario: it is printed and checked |
//! | `everywhere` | changes to a plane, and what every replica says of them |
//! | `figures` | the numbers of a run in one line |
//! | `stalls` | times in which the machine of the test ran no process |
//! | `setup` | a whole ring, assembled from the others |

pub mod addresses;
pub mod balancer;
pub mod client;
pub mod collection;
pub mod controller;
pub mod etcd;
pub mod everywhere;
pub mod figures;
pub mod judged;
pub mod load;
pub mod network;
pub mod process;
pub mod replica;
pub mod setup;
pub mod stalls;

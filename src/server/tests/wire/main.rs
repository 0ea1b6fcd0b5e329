//! Tests of the server over real TLS, with HTTP/1.1 and HTTP/2, in front of a fake backend.

mod asleep;
mod bodies;
mod bootstrappers;
mod browsers;
mod client;
mod discovery;
mod door;
mod fake;
mod floods;
mod forwarding;
mod goaway;
mod identity;
mod namesakes;
mod peers;
mod requests;
mod resets;
mod ring;
mod starting;
mod stopping;
mod strangers;
mod streams;
mod websockets;

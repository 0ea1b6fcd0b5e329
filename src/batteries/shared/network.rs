//! Addresses and URLs in fields of several groups.

pub mod addresses;
pub mod ca_bundle;
pub mod webhook_client;

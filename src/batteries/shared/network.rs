//! Addresses and URLs in fields of several groups.

pub mod addresses;
pub mod webhook_client;

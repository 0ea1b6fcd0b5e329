//! Looks names up, and passes on only the addresses that may be called.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

use crate::address::Reach;

/// Addresses of one name that are tried. More would be a scan that a name's owner lets us make.
const ADDRESSES_MAX: usize = 8;

/// None of a name's addresses may be called.
#[derive(Debug, thiserror::Error)]
#[error("no address of {0:?} is one that the operator allows")]
pub(crate) struct AddressRefused(pub(crate) String);

/// The resolver of one plane. The connector connects to what it returns, and looks nothing up again.
#[derive(Clone, Debug)]
pub(crate) struct GuardedResolver(pub(crate) Reach);

impl Service<Name> for GuardedResolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let reach = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed = found.filter(|address| reach.allows(address.ip()));
            let allowed: Vec<SocketAddr> = allowed.take(ADDRESSES_MAX).collect();
            match allowed.is_empty() {
                true => Err(io::Error::other(AddressRefused(name.as_str().to_owned()))),
                false => Ok(allowed.into_iter()),
            }
        })
    }
}

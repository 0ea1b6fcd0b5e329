//! The client of a key management service: version 2 of upstream's plug-ins, over a Unix socket.
//!
//! A service wraps key-encryption keys and nothing else, so it is called at the start of a process
//! only, and no control plane waits for it.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use polyplane_apimachinery::error_chain;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;
use zeroize::Zeroizing;

use crate::KEY_BYTES;
use crate::config::KmsProvider;

/// Bytes of what a service returns for a key, and of its annotations, as upstream. More would make
/// each start read it.
const CIPHERTEXT_BYTES_MAX: usize = 1 << 10;
const ANNOTATIONS_BYTES_MAX: usize = 32 << 10;
/// Bytes of the id of a service's key, as upstream.
const REMOTE_ID_BYTES_MAX: usize = 1 << 10;

/// The reason why a service did not do what it was called for. No text has a key in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KmsError {
    /// The service does not answer; a later call may succeed.
    #[error("the key management service {name:?} does not answer: {reason}")]
    Unavailable {
        /// The name of the provider.
        name: String,
        /// What the call ended with.
        reason: String,
    },
    /// The service answered that it cannot, or with something that is no answer.
    #[error("the key management service {name:?} {reason}")]
    Wrong {
        /// The name of the provider.
        name: String,
        /// What is wrong.
        reason: String,
    },
}

/// A key-encryption key as a service has wrapped it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrappedByKms {
    /// What the service calls its own key.
    pub remote_id: String,
    /// The wrapped key.
    pub ciphertext: Vec<u8>,
    /// What the service wants to see again when it unwraps.
    pub annotations: HashMap<String, Vec<u8>>,
}

/// A connection to a service, made when it is first used.
pub struct KmsClient {
    name: String,
    timeout: Duration,
    channel: Channel,
}

impl fmt::Debug for KmsClient {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KmsClient({})", self.name)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    healthz: String,
    #[prost(string, tag = "3")]
    key_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct EncryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EncryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    key_id: String,
    #[prost(map = "string, bytes", tag = "3")]
    annotations: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DecryptRequest {
    #[prost(bytes = "vec", tag = "1")]
    ciphertext: Vec<u8>,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    key_id: String,
    #[prost(map = "string, bytes", tag = "4")]
    annotations: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct DecryptResponse {
    #[prost(bytes = "vec", tag = "1")]
    plaintext: Vec<u8>,
}

impl fmt::Debug for EncryptRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EncryptRequest")
    }
}

impl fmt::Debug for DecryptResponse {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DecryptResponse")
    }
}

impl KmsClient {
    /// Returns the client of a provider.
    ///
    /// # Errors
    /// Returns an error if the path of the socket cannot be used.
    ///
    /// # Panics
    /// Panics outside a runtime of tokio.
    pub fn new(provider: &KmsProvider) -> Result<Self, KmsError> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", provider.socket));
        let endpoint = endpoint.map_err(|error| KmsError::Wrong {
            name: provider.name.clone(),
            reason: format!("has no socket: {error}"),
        })?;
        Ok(Self {
            name: provider.name.clone(),
            timeout: provider.timeout,
            channel: endpoint
                .connect_timeout(provider.timeout)
                .timeout(provider.timeout)
                .connect_lazy(),
        })
    }

    /// Returns what the service calls the key by which it wraps now.
    ///
    /// # Errors
    /// See [`KmsError`]. A service that says that it is not well counts as one that does not answer.
    pub async fn remote_id(&self) -> Result<String, KmsError> {
        let status: StatusResponse = self.call("Status", StatusRequest {}).await?;
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            return Err(self.wrong(format!("has the version {:?} and not v2", status.version)));
        }
        if status.healthz != "ok" {
            return Err(self.unavailable(format!("it says about itself {:?}", status.healthz)));
        }
        self.checked(status.key_id)
    }

    /// Lets the service wrap a key.
    ///
    /// # Errors
    /// See [`KmsError`].
    pub async fn wrap(&self, key: &[u8; KEY_BYTES]) -> Result<WrappedByKms, KmsError> {
        let request = EncryptRequest {
            plaintext: key.to_vec(),
            uid: uuid::Uuid::new_v4().to_string(),
        };
        let response: EncryptResponse = self.call("Encrypt", request).await?;
        let sizes = response.annotations.iter();
        let annotations: usize = sizes.map(|(key, value)| key.len() + value.len()).sum();
        let is_size_right = (1..=CIPHERTEXT_BYTES_MAX).contains(&response.ciphertext.len());
        if !is_size_right || annotations > ANNOTATIONS_BYTES_MAX {
            return Err(self.wrong("returned a wrapped key that is empty or too long".to_owned()));
        }
        Ok(WrappedByKms {
            remote_id: self.checked(response.key_id)?,
            ciphertext: response.ciphertext,
            annotations: response.annotations,
        })
    }

    /// Lets the service unwrap a key.
    ///
    /// # Errors
    /// See [`KmsError`].
    pub async fn unwrap(
        &self,
        wrapped: &WrappedByKms,
    ) -> Result<Zeroizing<[u8; KEY_BYTES]>, KmsError> {
        let request = DecryptRequest {
            ciphertext: wrapped.ciphertext.clone(),
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: wrapped.remote_id.clone(),
            annotations: wrapped.annotations.clone(),
        };
        let response: DecryptResponse = self.call("Decrypt", request).await?;
        let plaintext = Zeroizing::new(response.plaintext);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        if plaintext.len() != KEY_BYTES {
            return Err(self.wrong("returned a key of another length".to_owned()));
        }
        key.copy_from_slice(&plaintext);
        Ok(key)
    }

    async fn call<Q, A>(&self, method: &str, request: Q) -> Result<A, KmsError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let path = PathAndQuery::try_from(format!("/v2.KeyManagementService/{method}"));
        let path = path.expect("the names of methods are letters");
        let called = async {
            grpc.ready().await.map_err(|error| error_chain(&error))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(request), path, codec).await;
            answer.map_err(|status| match status.code() {
                Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => {
                    error_chain(&status)
                }
                code => format!("{method} ended with {code:?}: {}", status.message()),
            })
        };
        match tokio::time::timeout(self.timeout, called).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(reason)) => Err(self.unavailable(reason)),
            Err(_) => Err(self.unavailable(format!("no answer to {method} in time"))),
        }
    }

    fn checked(&self, remote_id: String) -> Result<String, KmsError> {
        match remote_id.len() {
            1..=REMOTE_ID_BYTES_MAX => Ok(remote_id),
            _ => Err(self.wrong("names its key by an id that is empty or too long".to_owned())),
        }
    }

    fn unavailable(&self, reason: String) -> KmsError {
        KmsError::Unavailable {
            name: self.name.clone(),
            reason,
        }
    }

    fn wrong(&self, reason: String) -> KmsError {
        KmsError::Wrong {
            name: self.name.clone(),
            reason,
        }
    }
}

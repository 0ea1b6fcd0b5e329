//! The store's records of key-encryption keys, and the keys that services wrap.

use crate::replica::encryption::RECORDS;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use polyplane_ownership::agreement::{self, Agreed, AgreementError};
use polyplane_sealing::{
    KEY_BYTES, KeyEncryptionKey, KeyId, KmsClient, KmsError, KmsProvider, WrappedByKms,
};
use polyplane_storage::Store;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The record of a key-encryption key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRecord {
    /// The key's id, as text.
    id: String,
    /// The name of the key or of the provider, for messages.
    name: String,
    /// What a service made of the key; absent if the key stands in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kms: Option<Wrapped>,
    /// What the record was read from.
    #[serde(skip)]
    agreed: Option<Agreed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wrapped {
    key_id: String,
    /// In base64, as the values of the annotations.
    ciphertext: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// In the file.
    File,
    /// A service wraps it.
    Kms,
}

impl fmt::Display for KeyRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, id) = (&self.name, &self.id);
        match self.provider() {
            Provider::File => write!(formatter, "the key {name:?} (id {id})"),
            Provider::Kms => write!(formatter, "the kms provider {name:?} (id {id})"),
        }
    }
}

impl KeyRecord {
    /// Returns the record of a key that stands in the file.
    pub fn of_file(id: KeyId, name: &str) -> Self {
        Self {
            id: id.to_string(),
            name: name.to_owned(),
            kms: None,
            agreed: None,
        }
    }

    fn of_kms(id: KeyId, name: &str, wrapped: &WrappedByKms) -> Self {
        let annotations = wrapped.annotations.iter();
        Self {
            kms: Some(Wrapped {
                key_id: wrapped.remote_id.clone(),
                ciphertext: STANDARD.encode(&wrapped.ciphertext),
                annotations: annotations
                    .map(|(key, value)| (key.clone(), STANDARD.encode(value)))
                    .collect(),
            }),
            ..Self::of_file(id, name)
        }
    }

    /// Returns the key's id. A damaged one is that of no key.
    pub fn id(&self) -> KeyId {
        KeyId::parse(&self.id).unwrap_or(KeyId([0; 16]))
    }

    /// Returns where the key is.
    pub fn provider(&self) -> Provider {
        match self.kms {
            None => Provider::File,
            Some(_) => Provider::Kms,
        }
    }

    /// Returns the name of the record behind the prefix.
    pub fn name(&self) -> String {
        match self.provider() {
            Provider::File => format!("key/{}", self.id),
            Provider::Kms => format!("kms/{}", self.name),
        }
    }

    /// Returns the bytes for the store.
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("a record is plain data")
            .into()
    }

    /// Removes the record, unless it was written again since it was read.
    ///
    /// # Errors
    /// Returns an error if the store does not answer.
    pub async fn remove(&self, store: &Arc<dyn Store>) -> Result<(), AgreementError> {
        match &self.agreed {
            Some(agreed) => agreement::remove(store, RECORDS, agreed).await,
            None => Ok(()),
        }
    }

    fn wrapped(&self) -> Option<WrappedByKms> {
        let kms = self.kms.as_ref()?;
        let bytes = |text: &str| STANDARD.decode(text).ok();
        let annotation = |(key, text): (&String, &String)| Some((key.clone(), bytes(text)?));
        Some(WrappedByKms {
            remote_id: kms.key_id.clone(),
            ciphertext: bytes(&kms.ciphertext)?,
            annotations: kms
                .annotations
                .iter()
                .map(annotation)
                .collect::<Option<_>>()?,
        })
    }
}

/// Returns the records of all key-encryption keys that wrap something.
///
/// # Errors
/// Returns an error if the store does not answer.
pub async fn records(store: &Arc<dyn Store>) -> Result<Vec<KeyRecord>, AgreementError> {
    let found = agreement::all(store, RECORDS).await?;
    Ok(found.into_iter().map(read).collect())
}

/// Reads a record. One that this program cannot read counts as that of a key that it lacks.
fn read(agreed: Agreed) -> KeyRecord {
    let record = serde_json::from_slice(&agreed.value);
    let record = record.unwrap_or_else(|_| KeyRecord {
        id: String::new(),
        name: agreed.name.clone(),
        kms: None,
        agreed: None,
    });
    KeyRecord {
        agreed: Some(agreed),
        ..record
    }
}

/// Returns the key that a service wraps: that of the store's record, or a new one if `writes` and there
/// is none yet. If the service wraps by another key of its own by now, it wraps the same key again.
///
/// # Errors
/// Returns an error if the service or the store does not answer, or if the service's answer is wrong.
pub async fn kms_key(
    store: &Arc<dyn Store>,
    known: &[KeyRecord],
    provider: &KmsProvider,
    writes: bool,
) -> anyhow::Result<Option<Arc<KeyEncryptionKey>>> {
    let client = KmsClient::new(provider)?;
    let known = known
        .iter()
        .find(|known| known.provider() == Provider::Kms && known.name == provider.name);
    if let Some(record) = known {
        let key = unwrap(&client, record, provider).await?;
        let remote_id = client.remote_id().await?;
        if record
            .kms
            .as_ref()
            .is_some_and(|kms| kms.key_id != remote_id)
        {
            let anew = client.wrap(&key).await?;
            let id = KeyEncryptionKey::new(&*key).id();
            let anew = KeyRecord::of_kms(id, &provider.name, &anew);
            if let Some(agreed) = &record.agreed {
                agreement::replace(store, RECORDS, agreed, anew.encode()).await?;
            }
        }
        return Ok(Some(Arc::new(KeyEncryptionKey::new(&*key))));
    }
    // Asked even if nothing is wrapped yet: a service that is down should be noticed at the start.
    client.remote_id().await?;
    if !writes {
        return Ok(None);
    }
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    aws_lc_rs::rand::fill(&mut *key).expect("the system has random bytes");
    let id = KeyEncryptionKey::new(&*key).id();
    let own = KeyRecord::of_kms(id, &provider.name, &client.wrap(&key).await?);
    let name = format!("{RECORDS}{}", own.name());
    let agreed = agreement::agree(store, &name, own.encode()).await?;
    let agreed: KeyRecord = serde_json::from_slice(&agreed)?;
    let key = match agreed.id == own.id {
        true => key,
        // Another replica was first.
        false => unwrap(&client, &agreed, provider).await?,
    };
    Ok(Some(Arc::new(KeyEncryptionKey::new(&*key))))
}

async fn unwrap(
    client: &KmsClient,
    record: &KeyRecord,
    provider: &KmsProvider,
) -> Result<Zeroizing<[u8; KEY_BYTES]>, KmsError> {
    let wrong = |reason: &str| KmsError::Wrong {
        name: provider.name.clone(),
        reason: reason.to_owned(),
    };
    let wrapped = record.wrapped();
    let wrapped = wrapped.ok_or_else(|| wrong("has a record in the store that is damaged"))?;
    let key = client.unwrap(&wrapped).await?;
    match KeyEncryptionKey::new(&*key).id() == record.id() {
        true => Ok(key),
        false => Err(wrong("returned another key than the one that it wrapped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores have such records.
    #[test]
    fn the_form_of_a_record_is_frozen() {
        let id = KeyId::parse("000102030405060708090a0b0c0d0e0f").expect("an id");
        let wrapped = WrappedByKms {
            remote_id: "remote".to_owned(),
            ciphertext: b"wrapped".to_vec(),
            annotations: [("a.example".to_owned(), b"b".to_vec())].into(),
        };
        let file = r#"{"id":"000102030405060708090a0b0c0d0e0f","name":"one"}"#;
        let kms = r#"{"id":"000102030405060708090a0b0c0d0e0f","name":"vault","kms":{"keyId":"remote","ciphertext":"d3JhcHBlZA==","annotations":{"a.example":"Yg=="}}}"#;
        for (record, wanted, name) in [
            (
                KeyRecord::of_file(id, "one"),
                file,
                "key/000102030405060708090a0b0c0d0e0f",
            ),
            (KeyRecord::of_kms(id, "vault", &wrapped), kms, "kms/vault"),
        ] {
            assert_eq!(String::from_utf8_lossy(&record.encode()), wanted);
            assert_eq!(record.name(), name);
            let read: KeyRecord = serde_json::from_str(wanted).expect("a record");
            assert_eq!(read.id(), id);
            let is_same = read.wrapped().is_none_or(|read| read == wrapped);
            assert!(is_same && read.wrapped().is_some() == (record.provider() == Provider::Kms));
        }
    }
}

//! Layers in the store: written once under their content hash, and read by any binary that opens a
//! plane born on them.
//!
//! A layer is a head record and as many chunks as its bytes need. The chunks are written first, so
//! a layer with a head is whole. Writing a layer twice writes the same bytes.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use polyplane_storage::{CommitError, Op, ReadError, Store, Txn};

use crate::key::Key;
use crate::layers::layer::{Layer, LayerError, LayerHash, LayerObject};
use crate::record::{EventHeader, Record, RecordError, decode, encode_object};
use crate::version::Version;

/// Bytes of one chunk. Without chunks a layer would exceed the size that a store accepts for one
/// value.
const CHUNK_BYTES: usize = 256 << 10;
/// The number of the head record's form.
const FORMAT: u8 = 1;

/// The reason why a layer could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum LayerStoreError {
    /// The store refused the write, or its outcome is unknown.
    #[error("cannot write the layer")]
    Commit(#[from] CommitError),
    /// The store did not answer.
    #[error("cannot read the layer")]
    Read(#[from] ReadError),
    /// The store has no such layer.
    #[error("the store has no layer {0:?}")]
    Missing(LayerHash),
    /// A record cannot be decoded, or does not match the hash.
    #[error("the layer in the store is damaged or newer than this program")]
    Record(#[from] RecordError),
    /// The records are not those of a layer.
    #[error("the records of the layer in the store do not form a layer")]
    Layer(#[from] LayerError),
}

/// Writes a layer to the store, unless it is there.
///
/// # Errors
/// Returns the store's error; trying again is safe.
pub async fn save_layer(store: &Arc<dyn Store>, layer: &Layer) -> Result<(), LayerStoreError> {
    let head = head_key(layer.hash());
    if store.get(&head).await?.1.is_some() {
        return Ok(());
    }
    let bytes = encode(layer);
    let chunks = bytes.len().div_ceil(CHUNK_BYTES);
    for at in 0..chunks {
        let end = bytes.len().min((at + 1) * CHUNK_BYTES);
        let value = bytes.slice(at * CHUNK_BYTES..end);
        put(store, chunk_key(layer.hash(), at), value).await?;
    }
    put(store, head, head_value(chunks)).await
}

fn head_value(chunks: usize) -> Bytes {
    let mut value = BytesMut::new();
    value.put_u8(FORMAT);
    value.put_u32(u32::try_from(chunks).expect("a layer in memory has few chunks"));
    value.freeze()
}

/// Returns the number of chunks that a head record names.
fn chunks_of(mut head: Bytes) -> Result<usize, RecordError> {
    if head.len() != 5 {
        return Err(RecordError::Damaged);
    }
    let format = head.get_u8();
    if format != FORMAT {
        return Err(RecordError::Newer(format));
    }
    Ok(head.get_u32() as usize)
}

/// Reads a layer from the store.
///
/// # Errors
/// See [`LayerStoreError`].
pub async fn load_layer(
    store: &Arc<dyn Store>,
    hash: &LayerHash,
) -> Result<Arc<Layer>, LayerStoreError> {
    let missing = || LayerStoreError::Missing(hash.clone());
    let head = store.get(&head_key(hash)).await?.1.ok_or_else(missing)?;
    let mut bytes = BytesMut::new();
    for at in 0..chunks_of(head.value)? {
        let chunk = store.get(&chunk_key(hash, at)).await?.1;
        bytes.extend_from_slice(&chunk.ok_or(RecordError::Damaged)?.value);
    }
    let layer = Layer::build(parse(bytes.freeze())?)?;
    if layer.hash() != hash {
        return Err(RecordError::Damaged.into());
    }
    Ok(layer)
}

fn head_key(hash: &LayerHash) -> Bytes {
    format!("l/{}", hash.0).into()
}

fn chunk_key(hash: &LayerHash, at: usize) -> Bytes {
    format!("l/{}/{at:04}", hash.0).into()
}

async fn put(store: &Arc<dyn Store>, key: Bytes, value: Bytes) -> Result<(), LayerStoreError> {
    let put = Op::Put {
        key,
        value,
        lease: None,
    };
    let txn = Txn {
        compares: Vec::new(),
        ops: vec![put],
    };
    store.commit(txn).await?;
    Ok(())
}

fn encode(layer: &Layer) -> Bytes {
    let mut out = BytesMut::new();
    let header = EventHeader {
        index: 0,
        previous: Version::ZERO,
        created: Version::ZERO,
    };
    for LayerObject { key, object } in layer.objects() {
        for part in [key.as_bytes(), &*encode_object(header, &object)] {
            out.put_u32(u32::try_from(part.len()).expect("bodies are bounded far below 4 GiB"));
            out.put_slice(part);
        }
    }
    out.freeze()
}

fn parse(mut bytes: Bytes) -> Result<Vec<LayerObject>, RecordError> {
    let mut objects = Vec::new();
    while bytes.has_remaining() {
        let key = part(&mut bytes)?;
        let key = Key::from_bytes(&key).ok_or(RecordError::Key)?;
        let Record::Object { object, .. } = decode(&part(&mut bytes)?)? else {
            return Err(RecordError::Damaged);
        };
        objects.push(LayerObject { key, object });
    }
    Ok(objects)
}

fn part(bytes: &mut Bytes) -> Result<Bytes, RecordError> {
    if bytes.len() < 4 {
        return Err(RecordError::Damaged);
    }
    let len = bytes.get_u32() as usize;
    if bytes.len() < len {
        return Err(RecordError::Damaged);
    }
    Ok(bytes.split_to(len))
}

/// A layer's records, for the test that freezes their form.
#[cfg(test)]
pub(crate) mod frozen_layer {
    use anyhow::{Result, ensure};
    use polyplane_tests::frozen::Written;

    use super::*;
    use crate::testing::object;

    fn layer() -> Arc<Layer> {
        let of = |name: &str, value: &str| LayerObject {
            key: Key::new("", "configmaps", Some("ns"), name),
            object: object(name, "layer", value),
        };
        let filled = "${UID} ${UID:/configmaps/ns/b} ${BIRTH_TIME} ${CA}";
        Layer::build(vec![of("a", filled), of("b", "plain")]).expect("nothing to refuse")
    }

    pub(crate) fn written() -> [Written; 4] {
        let layer = layer();
        let head = head_value(1);
        [
            Written::new("key of the head", head_key(layer.hash())),
            Written::new("key of a chunk", chunk_key(layer.hash(), 12)),
            Written::new("head", head),
            Written::new("chunk", encode(&layer)),
        ]
    }

    pub(crate) fn read(name: &str, bytes: &[u8]) -> Result<String> {
        let value = Bytes::copy_from_slice(bytes);
        Ok(match name {
            "head" => format!("{} chunks", chunks_of(value)?),
            "chunk" => {
                let objects = parse(value)?;
                let layer = Layer::build(objects.clone())?;
                format!("{} of {objects:?}", layer.hash().0)
            }
            _ => {
                let text = std::str::from_utf8(bytes)?;
                ensure!(text.starts_with("l/"), "no key of a layer");
                text.to_owned()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use polyplane_storage::{MemoryOptions, MemoryStore};

    use super::*;
    use crate::testing::object;

    #[tokio::test]
    async fn a_layer_comes_back_as_it_was_and_damage_is_seen() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let of = |name: &str, value: &str| LayerObject {
            key: Key::new("", "configmaps", Some("ns"), name),
            object: object(name, "layer", value),
        };
        let objects = vec![
            of(
                "a",
                "${UID} ${UID:/configmaps/ns/b} ${BIRTH_TIME} ${CA}, ${x}",
            ),
            of("b", &"y".repeat(300_000)),
        ];
        let layer = Layer::build(objects.clone()).expect("fine");
        let back: Vec<_> = layer.objects().collect();
        for (back, wanted) in back.iter().zip(&objects) {
            assert_eq!(back.object.body, wanted.object.body);
            assert_eq!(back.object.labels, wanted.object.labels);
            assert_eq!(back.object.version_slot, wanted.object.version_slot);
        }
        let missing = load_layer(&store, layer.hash()).await;
        assert!(matches!(missing, Err(LayerStoreError::Missing(_))));
        save_layer(&store, &layer).await.expect("fine");
        let revision = store.revision().await.expect("it answers");
        save_layer(&store, &layer).await.expect("fine");
        assert_eq!(store.revision().await, Ok(revision), "it is there once");
        let loaded = load_layer(&store, layer.hash()).await.expect("it is there");
        assert_eq!(loaded.hash(), layer.hash());
        assert_eq!(loaded.len(), 2);

        let chunk = chunk_key(layer.hash(), 0);
        let stored = store.get(&chunk).await.expect("it answers").1;
        let mut changed = BytesMut::from(&stored.expect("a chunk").value[..]);
        let last = changed.len() - 100;
        changed[last] ^= 1;
        put(&store, chunk, changed.freeze()).await.expect("fine");
        let damaged = load_layer(&store, layer.hash()).await;
        assert!(matches!(
            damaged,
            Err(LayerStoreError::Record(RecordError::Damaged))
        ));
    }
}

//! Layers: immutable sorted maps of template objects under a content hash, the same in every plane.
//! [`crate::TemplateValues`] turn a template into an object of one plane.
//!
//! A plane's map is born as the root of its layer's map, so reading merges nothing. A template body
//! is canonical JSON with placeholders: `${UID}` (of the object itself), `${UID:<key>}` (of another
//! template), `${BIRTH_TIME}`, and `${NAME}` for a parameter of the plane's record. Labels hold no
//! placeholders, so selectors need no template values.

mod indexed;

use std::collections::BTreeSet;
use std::sync::Arc;

use aws_lc_rs::digest;
use bytes::Bytes;
use polyplane_apimachinery::Str;

use crate::key::Key;
use crate::state::Resources;
use crate::state::entry::{Entry, NewObject};
use crate::version::Stamp;
use indexed::Indexed;

/// One object of a layer, as the caller gives it to [`Layer::build`].
#[derive(Debug, Clone)]
pub struct LayerObject {
    /// The object's key.
    pub key: Key,
    /// The object's body with placeholders; `expires` and `flags` are not used.
    pub object: NewObject,
}

/// The name of a layer's content: its SHA-256, in hexadecimal.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct LayerHash(pub String);

/// The reason why a layer cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayerError {
    /// Two objects have one key.
    #[error("two objects have the key {0}")]
    Twice(Key),
    /// The labels of an object hold a placeholder.
    #[error("the labels of {0} hold a placeholder")]
    FilledLabels(Key),
    /// `${UID:<key>}` names no object of the layer.
    #[error("{key} names the uid of {named}, which the layer does not have")]
    UnknownUid {
        /// The key of the object with the placeholder.
        key: Key,
        /// The key in the placeholder.
        named: String,
    },
}

/// An immutable sorted map of templates.
#[derive(Debug)]
pub struct Layer {
    hash: LayerHash,
    resources: Resources,
    params: BTreeSet<Str>,
    indexed: Indexed,
}

impl Layer {
    /// Returns the layer without objects.
    #[must_use]
    pub fn empty() -> Arc<Self> {
        Self::build(Vec::new()).expect("no object, nothing to refuse")
    }

    /// Splits bodies at their placeholders and builds the map.
    ///
    /// # Errors
    /// See [`LayerError`].
    pub fn build(mut objects: Vec<LayerObject>) -> Result<Arc<Self>, LayerError> {
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        if let Some(pair) = objects.windows(2).find(|pair| pair[0].key == pair[1].key) {
            return Err(LayerError::Twice(pair[0].key.clone()));
        }
        let keys: BTreeSet<Key> = objects.iter().map(|object| object.key.clone()).collect();
        let hash = content_hash(&objects);
        let mut resources = Resources::default();
        let mut params = BTreeSet::new();
        for LayerObject { key, object } in objects {
            let template = Template::split(&key, &object)?;
            for piece in &template.pieces {
                match piece {
                    Piece::Param(name) => {
                        params.insert(name.clone());
                    }
                    Piece::UidOf(named) if !keys.contains(named) => {
                        let named = named.to_string();
                        return Err(LayerError::UnknownUid { key, named });
                    }
                    _ => {}
                }
            }
            let stamp = stamp_of(&object);
            resources.insert(Entry::template(key, stamp, template));
        }
        Ok(Arc::new(Self {
            hash,
            resources,
            params,
            indexed: Indexed::default(),
        }))
    }

    /// Returns the name of the layer's content.
    #[must_use]
    pub fn hash(&self) -> &LayerHash {
        &self.hash
    }

    /// Returns the names of the parameters that a plane's record must have a value for.
    pub fn params(&self) -> impl Iterator<Item = &Str> {
        self.params.iter()
    }

    /// Returns the number of objects in the layer.
    #[must_use]
    pub fn len(&self) -> usize {
        self.resources.count()
    }

    /// Returns whether the layer has no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    /// Returns the index rows that planes share.
    pub(crate) fn indexed(&self) -> &Indexed {
        &self.indexed
    }

    /// Returns the objects that the layer was built of, in key order.
    pub(crate) fn objects(&self) -> impl Iterator<Item = LayerObject> {
        self.resources.entries().filter_map(|entry| {
            let object = entry.as_template()?.source();
            let key = entry.key().clone();
            Some(LayerObject { key, object })
        })
    }
}

/// Returns the stamp of a template. Two layers that have the same object have it under the same
/// stamp.
fn stamp_of(object: &NewObject) -> Stamp {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(object.storage_version.as_bytes());
    context.update(b"\0");
    context.update(&object.body);
    let mut content = [0; 8];
    content.copy_from_slice(&context.finish().as_ref()[..8]);
    Stamp::template(u64::from_be_bytes(content))
}

fn content_hash(objects: &[LayerObject]) -> LayerHash {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut part = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    for LayerObject { key, object } in objects {
        part(key.as_bytes());
        part(object.storage_version.as_bytes());
        part(&(object.version_slot as u64).to_be_bytes());
        part(&object.body);
    }
    let mut text = String::with_capacity(64);
    for byte in context.finish().as_ref() {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(u32::from(digit), 16).expect("a nibble is a digit"));
        }
    }
    LayerHash(text)
}

/// A body cut at its placeholders.
#[derive(Debug)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
    len: usize,
    labels: Bytes,
    storage_version: Str,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Text(Bytes),
    Version,
    Uid,
    UidOf(Key),
    BirthTime,
    Param(Str),
}

impl Template {
    fn split(key: &Key, object: &NewObject) -> Result<Self, LayerError> {
        let labels = object
            .labels
            .clone()
            .map_or(Bytes::new(), |labels| object.body.slice(labels));
        if placeholder(&labels).is_some() {
            return Err(LayerError::FilledLabels(key.clone()));
        }
        let mut pieces = Vec::new();
        split_text(&object.body.slice(..object.version_slot), &mut pieces);
        pieces.push(Piece::Text(Bytes::from_static(b"\"resourceVersion\":\"")));
        pieces.push(Piece::Version);
        pieces.push(Piece::Text(Bytes::from_static(b"\",")));
        split_text(&object.body.slice(object.version_slot..), &mut pieces);
        Ok(Self {
            pieces,
            len: object.body.len() + 40,
            labels,
            storage_version: object.storage_version.clone(),
        })
    }

    /// Returns the object that the template was split from.
    fn source(&self) -> NewObject {
        let mut body = Vec::with_capacity(self.len);
        let mut version_slot = 0;
        let mut labels = None;
        for (at, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Text(_) if self.is_around_version(at) => {}
                Piece::Version => version_slot = body.len(),
                Piece::Text(text) => {
                    let inside = slice_offset(text, &self.labels);
                    labels = labels.or(inside.map(|start| body.len() + start));
                    body.extend_from_slice(text);
                }
                Piece::Uid => body.extend_from_slice(b"${UID}"),
                Piece::UidOf(key) => body.extend_from_slice(format!("${{UID:{key}}}").as_bytes()),
                Piece::BirthTime => body.extend_from_slice(b"${BIRTH_TIME}"),
                Piece::Param(name) => body.extend_from_slice(format!("${{{name}}}").as_bytes()),
            }
        }
        NewObject {
            body: body.into(),
            version_slot,
            labels: labels.map(|start| start..start + self.labels.len()),
            storage_version: self.storage_version.clone(),
            expires: None,
            flags: crate::Flags::NONE,
        }
    }

    /// Returns the names of the parameters in the template's body.
    pub(crate) fn param_names(&self) -> impl Iterator<Item = &Str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Param(name) => Some(name),
            Piece::Text(_) | Piece::Version | Piece::Uid | Piece::UidOf(_) | Piece::BirthTime => {
                None
            }
        })
    }

    /// Returns the template's body without `resourceVersion`, filled with values that need no
    /// plane; `None` if the body names the uid of another object or a parameter that is not in
    /// `params`.
    fn sample(&self, uid: &str, time: &str, params: &[(&Str, &[u8])]) -> Option<Vec<u8>> {
        let mut body = Vec::with_capacity(self.len + 64);
        for (at, piece) in self.pieces.iter().enumerate() {
            match piece {
                Piece::Version => {}
                Piece::Text(_) if self.is_around_version(at) => {}
                Piece::Text(text) => body.extend_from_slice(text),
                Piece::Uid => body.extend_from_slice(uid.as_bytes()),
                Piece::UidOf(_) => return None,
                Piece::BirthTime => body.extend_from_slice(time.as_bytes()),
                Piece::Param(name) => {
                    let (_, text) = params.iter().find(|(known, _)| *known == name)?;
                    body.extend_from_slice(text);
                }
            }
        }
        Some(body)
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Returns whether the piece at this position is the text around the version, which is not part
    /// of the object itself.
    pub(crate) fn is_around_version(&self, at: usize) -> bool {
        let version = |near: Option<usize>| {
            near.and_then(|near| self.pieces.get(near)) == Some(&Piece::Version)
        };
        version(at.checked_add(1)) || version(at.checked_sub(1))
    }

    /// Returns whether the template's body names the uid of one of these other objects.
    pub(crate) fn names_uid_of(&self, keys: &[Key]) -> bool {
        let names = |piece: &Piece| matches!(piece, Piece::UidOf(key) if keys.contains(key));
        !keys.is_empty() && self.pieces.iter().any(names)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn labels(&self) -> &[u8] {
        &self.labels
    }

    pub(crate) fn storage_version(&self) -> &Str {
        &self.storage_version
    }
}

/// Returns the position of a slice in `text`, if both share one allocation.
fn slice_offset(text: &Bytes, slice: &Bytes) -> Option<usize> {
    let offset = (slice.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    (!slice.is_empty() && offset + slice.len() <= text.len()).then_some(offset)
}

/// Returns the first placeholder: its start, its end, and its meaning.
fn placeholder(text: &[u8]) -> Option<(usize, usize, Piece)> {
    let mut from = 0;
    while let Some(found) = text[from..].windows(2).position(|pair| pair == b"${") {
        let start = from + found;
        from = start + 2;
        let len = text[from..].iter().position(|byte| *byte == b'}')?;
        let Ok(name) = std::str::from_utf8(&text[from..from + len]) else {
            continue;
        };
        if let Some(piece) = piece_named(name) {
            return Some((start, from + len + 1, piece));
        }
    }
    None
}

/// Returns the meaning of a placeholder's name; `None` if it is not a placeholder, so that the text
/// stays as it is.
fn piece_named(name: &str) -> Option<Piece> {
    if let Some(key) = name.strip_prefix("UID:") {
        return Key::from_bytes(key.as_bytes()).map(Piece::UidOf);
    }
    let upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    if name.is_empty() || !name.bytes().all(upper) {
        return None;
    }
    Some(match name {
        "UID" => Piece::Uid,
        "BIRTH_TIME" => Piece::BirthTime,
        _ => Piece::Param(name.into()),
    })
}

fn split_text(text: &Bytes, pieces: &mut Vec<Piece>) {
    let mut rest = text.clone();
    while let Some((start, end, piece)) = placeholder(&rest) {
        pieces.push(Piece::Text(rest.slice(..start)));
        pieces.push(piece);
        rest = rest.slice(end..);
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| !matches!(piece, Piece::Text(text) if text.is_empty()));
}

#[cfg(test)]
#[path = "layer/tests.rs"]
mod tests;

//! Template values: what turns the templates of a layer into objects of one plane. They are uids, times,
//! versions, and the parameters of the plane's record.
//!
//! They belong to one moment, because the steps that a plane has taken decide which version a template
//! has. An object keeps a reference to the values that it was made with.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::hmac;
use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use polyplane_apimachinery::Str;

use crate::key::Key;
use crate::layers::chain::Chain;
use crate::layers::layer::{Piece, Template};
use crate::memory::{Memory, Share};
use crate::state::entry::Entry;
use crate::version::Version;

/// The values of a plane's templates at one moment.
#[derive(Debug)]
pub struct TemplateValues {
    fixed: Arc<Fixed>,
    chain: Arc<Chain>,
    /// The moment: commits of the chain after this version are ignored. `None` takes all of them.
    until: Option<Version>,
}

/// The values that no step changes.
#[derive(Debug)]
struct Fixed {
    number: u64,
    birth: Version,
    birth_time: Str,
    seed: hmac::Key,
    params: BTreeMap<Str, Vec<u8>>,
    cache: Arc<RenderCache>,
}

/// The inputs that [`TemplateValues`] are made of.
pub(crate) struct TemplateInputs<'a> {
    pub(crate) birth: Version,
    pub(crate) birth_time: Str,
    pub(crate) uid_seed: &'a [u8; 32],
    pub(crate) params: &'a BTreeMap<String, String>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) cache: &'a Arc<RenderCache>,
}

impl TemplateValues {
    pub(crate) fn new(of: TemplateInputs<'_>) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let fixed = Fixed {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            birth: of.birth,
            birth_time: of.birth_time,
            seed: hmac::Key::new(hmac::HMAC_SHA256, of.uid_seed),
            params: of
                .params
                .iter()
                .map(|(name, text)| (Str::from(name.as_str()), escaped(text)))
                .collect(),
            cache: Arc::clone(of.cache),
        };
        Arc::new(Self {
            fixed: Arc::new(fixed),
            chain: of.chain,
            until: None,
        })
    }

    /// Returns the values of the same plane with another chain of steps.
    pub(crate) fn with(&self, chain: Arc<Chain>) -> Arc<Self> {
        Arc::new(Self {
            fixed: Arc::clone(&self.fixed),
            chain,
            until: None,
        })
    }

    /// Returns the values of the same plane as they were at a version.
    pub(crate) fn until(self: &Arc<Self>, version: Version) -> Arc<Self> {
        if self.chain.has_no_steps() || self.until.is_some_and(|until| until <= version) {
            return Arc::clone(self);
        }
        Arc::new(Self {
            fixed: Arc::clone(&self.fixed),
            chain: Arc::clone(&self.chain),
            until: Some(version),
        })
    }

    pub(crate) fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Returns the number of the opened plane.
    pub(crate) fn number(&self) -> u64 {
        self.fixed.number
    }

    pub(crate) fn birth(&self) -> Version {
        self.fixed.birth
    }

    /// Returns the value of a parameter, escaped for a JSON string.
    pub(crate) fn param(&self, name: &str) -> Option<&[u8]> {
        self.fixed.params.get(name).map(Vec::as_slice)
    }

    pub(crate) fn has_param(&self, name: &str) -> bool {
        self.fixed.params.contains_key(name)
    }

    /// Returns whether both belong to the same opened plane.
    pub(crate) fn of_same_plane(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.fixed, &other.fixed)
    }

    /// Returns the template that the layers have for a key at this moment.
    pub(crate) fn template(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.chain.template(key, self.until)
    }

    /// Returns the version of a key's template; `None` while the commit that gave it is under way.
    pub(crate) fn version(&self, key: &Key) -> Option<Version> {
        match self.chain.last_change(key, self.until) {
            None => Some(self.fixed.birth),
            Some(changed) => changed.version,
        }
    }

    /// Returns the version at which a key got a template; `None` while that commit is under way.
    pub(crate) fn created(&self, key: &Key) -> Option<Version> {
        match self.chain.introduction(key, self.until) {
            None => Some(self.fixed.birth),
            Some(came) => came.version,
        }
    }

    /// Returns the body of a template in this plane, from the cache if it is there. It lacks
    /// `resourceVersion` while the commit that gave the version is under way.
    pub(crate) fn render(&self, entry: &Arc<Entry>, template: &Template) -> Bytes {
        let Some(version) = self.version(entry.key()) else {
            return self.write(entry.key(), template, None);
        };
        let key = RenderKey {
            template_values: self.fixed.number,
            entry: Arc::as_ptr(entry) as usize,
            version,
        };
        if let Some(body) = self.fixed.cache.get(key) {
            return body;
        }
        let body = self.write(entry.key(), template, Some(version));
        self.fixed.cache.put(key, body.clone());
        body
    }

    /// Returns the body of a template in this plane, with the given version.
    pub(crate) fn render_at(&self, key: &Key, template: &Template, version: Version) -> Bytes {
        self.write(key, template, Some(version))
    }

    fn write(&self, key: &Key, template: &Template, version: Option<Version>) -> Bytes {
        let mut body = BytesMut::with_capacity(template.len() + 64);
        let pieces = template.pieces();
        // Found once: a template has its time in each owner's entry.
        let mut time = None;
        for (at, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Text(_) if version.is_none() && template.is_around_version(at) => {}
                Piece::Text(text) => body.put_slice(text),
                Piece::Version => {
                    let digits = version.map(|version| version.to_string());
                    body.put_slice(digits.unwrap_or_default().as_bytes());
                }
                Piece::Uid => body.put_slice(self.uid(key).as_bytes()),
                Piece::UidOf(other) => body.put_slice(self.uid_in(other, key).as_bytes()),
                Piece::BirthTime => {
                    let time = *time.get_or_insert_with(|| self.time(key));
                    body.put_slice(time.as_bytes());
                }
                Piece::Param(name) => {
                    let text = self.fixed.params.get(name);
                    body.put_slice(text.expect("open checked that the record fills all names"));
                }
            }
        }
        body.freeze()
    }

    /// Returns the time at which this plane got a template, RFC 3339.
    fn time(&self, key: &Key) -> &str {
        let came = self.chain.introduction(key, self.until);
        came.map_or(&self.fixed.birth_time, |came| came.time)
    }

    /// Returns the uid of a template in this plane.
    fn uid(&self, key: &Key) -> Str {
        let came = self.chain.introduction(key, self.until);
        self.uid_of(key, came.map_or(0, |came| came.number))
    }

    /// Returns the uid of a template as another template, `namer`, refers to it: the uid in the
    /// layer of the namer, even if the step to that layer has not added `key` yet.
    fn uid_in(&self, key: &Key, namer: &Key) -> Str {
        let changed = self.chain.last_change(namer, self.until);
        let brought = changed.map_or(0, |changed| {
            self.chain.introducing_step(key, changed.number)
        });
        self.uid_of(key, brought)
    }

    /// Returns a uid in the form of version 4 that cannot be guessed from the object's name. It
    /// differs between planes of the same name, and between objects of the same key that different
    /// steps added.
    fn uid_of(&self, key: &Key, number: u32) -> Str {
        let mut context = hmac::Context::with_key(&self.fixed.seed);
        context.update(key.as_bytes());
        if number > 0 {
            // No other key gives this text, because no key has a zero byte followed by "step".
            context.update(b"\0step\0");
            context.update(&number.to_be_bytes());
        }
        let tag = context.sign();
        let mut bits = [0; 16];
        bits.copy_from_slice(&tag.as_ref()[..16]);
        bits[6] = bits[6] & 0x0F | 0x40;
        bits[8] = bits[8] & 0x3F | 0x80;
        let mut text = Str::with_capacity(36);
        for (at, byte) in bits.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).expect("a nibble is a digit"));
            }
        }
        text
    }
}

/// Returns the seed of the uids of one plane's templates.
#[must_use]
pub fn uid_seed(store_secret: &[u8], plane: &str, birth: Version) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, store_secret);
    let mut context = hmac::Context::with_key(&key);
    context.update(b"template uid\0");
    context.update(plane.as_bytes());
    context.update(&birth.raw().to_be_bytes());
    let mut seed = [0; 32];
    seed.copy_from_slice(context.sign().as_ref());
    seed
}

/// The template values of a plane over a stretch of time. The newest values do not know the time
/// before their fold, for which there are older ones.
#[derive(Debug)]
pub(crate) struct ValuesOverTime {
    /// Older values in order, each with the last version that they are valid for.
    past: Vec<(Version, Arc<TemplateValues>)>,
    newest: Arc<TemplateValues>,
}

impl ValuesOverTime {
    pub(crate) fn new(newest: Arc<TemplateValues>) -> Self {
        Self {
            past: Vec::new(),
            newest,
        }
    }

    /// Adds a chain that is valid up to the version `until`, and after the chains added before.
    pub(crate) fn push(&mut self, until: Version, chain: Arc<Chain>) {
        self.past.push((until, self.newest.with(chain)));
    }

    /// Returns the values that are valid at an event.
    pub(crate) fn of(&self, event: Version) -> &Arc<TemplateValues> {
        let at = self.past.partition_point(|(until, _)| *until < event);
        let past = self
            .past
            .get(at)
            .map(|(_, template_values)| template_values);
        past.unwrap_or(&self.newest)
    }

    /// Returns the values that are valid directly before an event, and those with it.
    pub(crate) fn around(&self, event: Version) -> (Arc<TemplateValues>, Arc<TemplateValues>) {
        let template_values = self.of(event);
        (
            template_values.until(event.before()),
            template_values.until(event),
        )
    }
}

/// Escapes a text for the inside of a JSON string, as Go does for HTML.
fn escaped(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes());
            }
            _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out
}

/// The key of a rendered body in the cache. The process never drops a layer, so no other entry can get
/// the same address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RenderKey {
    pub(crate) template_values: u64,
    pub(crate) entry: usize,
    pub(crate) version: Version,
}

/// Rendered templates of all planes of a store, bounded in bytes; the oldest is dropped first.
#[derive(Debug)]
pub(crate) struct RenderCache {
    inner: Mutex<Rendered>,
    memory: Arc<Memory>,
}

#[derive(Debug, Default)]
struct Rendered {
    bodies: HashMap<RenderKey, Bytes>,
    order: VecDeque<RenderKey>,
    bytes: usize,
    /// Bytes that are counted in the memory budget.
    counted_bytes: usize,
}

impl RenderCache {
    pub(crate) fn new(memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            memory: Arc::clone(memory),
        })
    }

    fn get(&self, key: RenderKey) -> Option<Bytes> {
        self.inner.lock().bodies.get(&key).cloned()
    }

    fn put(&self, key: RenderKey, body: Bytes) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        inner.bytes += body.len();
        if let Some(old) = inner.bodies.insert(key, body) {
            inner.bytes -= old.len();
        } else {
            inner.order.push_back(key);
        }
        while inner.bytes > self.memory.limit(Share::Rendered) {
            let Some(oldest) = inner.order.pop_front() else {
                break;
            };
            if let Some(old) = inner.bodies.remove(&oldest) {
                inner.bytes -= old.len();
            }
        }
        self.memory
            .correct(Share::Rendered, &mut inner.counted_bytes, inner.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_render_cache_stays_within_its_bytes() {
        let memory = Memory::with_limits(|_| 100);
        let cache = RenderCache::new(&memory);
        let key = |entry| RenderKey {
            template_values: 0,
            entry,
            version: Version::ZERO,
        };
        for at in 0..20 {
            cache.put(key(at), Bytes::from(vec![0; 30]));
        }
        assert_eq!(cache.inner.lock().bodies.len(), 3);
        assert_eq!(memory.used(Share::Rendered), 90);
        assert!(cache.get(key(19)).is_some() && cache.get(key(0)).is_none());
    }
}

//! Units: the versions of definitions, each compiled once in the process whatever planes have it.
//!
//! Planes keep a unit alive; its compiled form is kept by a cache with a bound in bytes, and by the
//! requests that use it. What is dropped is compiled again when it is needed.

use crate::rules::Rules;
use crate::validation::Schema;
use bytes::Bytes;
use parking_lot::Mutex;
use polyplane_apimachinery::json::{Limits, parse};
use polyplane_apimachinery::structural::Structural;
use polyplane_apimachinery::{Value, json};
use polyplane_plane::{ByContent, ContentId};
use polyplane_registry::kinds::custom::{CompileTurn, CustomSchema};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

/// Bytes of compiled units that are kept though no request uses them. Without a bound a tenant with
/// many definitions would take all memory; below some megabytes busy planes would compile again and
/// again.
const CACHE_BYTES_MAX: usize = 64 << 20;
/// The content that a unit's id is made of besides its schema: a change of it gives all units new
/// ids.
const COMPILER: &[u8] = b"unit 1";

/// The units of a process.
#[derive(Debug, Default)]
pub(crate) struct Units {
    known: ByContent<Unit>,
    cache: Arc<Mutex<Cache>>,
}

/// A version of a definition.
#[derive(Debug)]
pub(crate) struct Unit {
    id: ContentId,
    /// The JSON of the schema.
    source: Bytes,
    /// Locked for an instant only.
    compiled: Mutex<Weak<Compiled>>,
    /// Held while it is compiled.
    compiling: Mutex<()>,
    turn: CompileTurn,
    cache: Arc<Mutex<Cache>>,
}

/// A unit in the form that is used.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub structural: Arc<Structural>,
    pub schema: Schema,
    pub rules: Rules,
    /// Why nothing can be written: the values that are allowed are not known.
    pub broken: Option<String>,
    bytes: usize,
}

/// The most recently compiled units.
#[derive(Debug, Default)]
struct Cache {
    kept: VecDeque<Arc<Compiled>>,
    bytes: usize,
    /// How often a unit was compiled.
    compilations: u64,
}

impl Units {
    /// Returns how often a unit was compiled.
    pub fn compilations(&self) -> u64 {
        self.cache.lock().compilations
    }

    /// Returns the unit of a schema.
    pub fn of(&self, schema: &Bytes) -> Arc<Unit> {
        let id = ContentId::of([COMPILER, schema]);
        self.known.share(id, || Unit {
            id,
            // A copy, because the schema is a part of a definition that belongs to one plane.
            source: Bytes::copy_from_slice(schema),
            compiled: Mutex::default(),
            compiling: Mutex::default(),
            turn: CompileTurn::default(),
            cache: Arc::clone(&self.cache),
        })
    }
}

impl Unit {
    /// Returns the bytes of [`CustomSchema::id`].
    pub fn id_bytes(&self) -> &[u8] {
        self.id.as_bytes()
    }

    /// Returns the compiled form. The first call takes milliseconds for a large schema.
    pub fn compiled(&self) -> Arc<Compiled> {
        if let Some(compiled) = self.known() {
            return compiled;
        }
        let compiling = self.compiling.lock();
        if let Some(compiled) = self.known() {
            return compiled;
        }
        let compiled = Arc::new(Compiled::of(&self.source));
        *self.compiled.lock() = Arc::downgrade(&compiled);
        drop(compiling);
        self.cache.lock().keep(&compiled);
        compiled
    }

    fn known(&self) -> Option<Arc<Compiled>> {
        self.compiled.lock().upgrade()
    }
}

impl CustomSchema for Unit {
    fn id(&self) -> ContentId {
        self.id
    }

    fn is_compiled(&self) -> bool {
        self.compiled.lock().strong_count() > 0
    }

    fn structural(&self) -> Arc<Structural> {
        Arc::clone(&self.compiled().structural)
    }

    fn source(&self) -> &Bytes {
        &self.source
    }

    fn compile_turn(&self) -> &CompileTurn {
        &self.turn
    }
}

impl Compiled {
    fn of(source: &[u8]) -> Self {
        let parsed = parse(source, &Limits::default());
        let mut broken = parsed.as_ref().err().map(ToString::to_string);
        let tree = parsed.map_or(Value::Null, |parsed| parsed.value);
        // Which schemas may be stored was checked when the definition was written. One that an
        // older release accepted and this one does not keeps all members.
        let open = || {
            let schema = json!({
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true
            });
            Structural::parse(&schema).expect("a constant schema is structural")
        };
        let mut structural = Structural::parse(&tree).unwrap_or_else(|_| open());
        structural.prune_defaults();
        let schema = Schema::compile(&tree).unwrap_or_else(|error| {
            broken = Some(error.to_string());
            Schema::default()
        });
        let rules = Rules::compile(&tree);
        let bytes = size_of::<Self>() + structural.bytes() + schema.bytes() + rules.bytes();
        Self {
            structural: Arc::new(structural),
            schema,
            rules,
            broken,
            bytes,
        }
    }
}

impl Cache {
    fn keep(&mut self, compiled: &Arc<Compiled>) {
        self.compilations += 1;
        self.bytes += compiled.bytes;
        self.kept.push_back(Arc::clone(compiled));
        while self.bytes > CACHE_BYTES_MAX && self.kept.len() > 1 {
            if let Some(oldest) = self.kept.pop_front() {
                self.bytes -= oldest.bytes;
            }
        }
    }
}

/// The schemas of a kind that has none: everything is allowed.
pub(crate) fn open_schema() -> Bytes {
    static OPEN: OnceLock<Bytes> = OnceLock::new();
    let text = b"{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true}";
    OPEN.get_or_init(|| Bytes::from_static(text)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::shape::Shape;

    #[test]
    fn defaults_are_served_without_members_that_the_schema_does_not_have() {
        let inner = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"default\":{\"a\":\"x\",\"b\":1}}";
        let source = format!("{{\"type\":\"object\",\"properties\":{{\"spec\":{inner}}}}}");
        let compiled = Compiled::of(source.as_bytes());
        let spec = compiled.structural.root().child("spec");
        let default = spec.and_then(Shape::default).cloned();
        assert_eq!(default, Some(json!({"a": "x"})));
    }

    #[test]
    fn a_schema_that_cannot_be_compiled_lets_nothing_be_written() {
        let below = "{\"type\":\"object\",\"items\":".repeat(300);
        let deep = format!("{below}{{}}{}", "}".repeat(300));
        for source in [deep.as_bytes(), b"{\"type\""] {
            assert!(Compiled::of(source).broken.is_some());
        }
        assert!(Compiled::of(&open_schema()).broken.is_none());
    }

    #[test]
    fn a_unit_counts_what_its_rules_names_and_allowed_values_take() {
        let long = "x".repeat(50_000);
        let bytes = |schema: &Value| Compiled::of(json::to_string(schema).as_bytes()).bytes;
        let plain = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let before = bytes(&plain);
        assert!(before < 10_000, "{before}");
        let with = |name: &str, value: Value| {
            let mut schema = plain.clone();
            schema.set(&["properties", "a", name], value);
            bytes(&schema)
        };
        let text = || Value::from(long.as_str());
        assert!(with("enum", Value::Array(vec![text(); 3])) > 150_000);
        let nested = json!({"b": [(text()), (text())]});
        assert!(with("enum", Value::Array(vec![nested])) > 100_000);
        assert!(with("pattern", text()) > 50_000);
        let rule = json!({
            "rule": (format!("self != '{long}'")),
            "message": (text()),
            "messageExpression": (format!("'{long}'"))
        });
        assert!(with("x-kubernetes-validations", Value::Array(vec![rule])) > 250_000);
        let mut named = plain.clone();
        named.set(&["properties", long.as_str()], json!({"type": "string"}));
        named.set(&["required"], Value::Array(vec![text()]));
        assert!(bytes(&named) > 100_000);
    }
}

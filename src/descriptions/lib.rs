//! Owns the descriptions of types and their fields. It must not know who shows them.
//!
//! Those of upstream's types are upstream's text, so they are not in the repository: the build script
//! takes them from the crate `k8s-openapi`. Those of this project are in `polyplane.txt`. The text is
//! unpacked while somebody holds it and not kept, as documents are made rarely.

use std::io::Read as _;
use std::ops::Range;
use std::sync::{Arc, Weak};

use flate2::read::DeflateDecoder;
use parking_lot::Mutex;

/// Records of definition, field and text; `build.rs` describes them.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));
const UNIT: u8 = 0x1f;
const RECORD: u8 = 0x1e;

/// The unpacked descriptions, by the names under which OpenAPI publishes types.
#[derive(Debug)]
pub struct Descriptions {
    text: String,
    /// Ordered by definition and field.
    records: Vec<Record>,
}

/// Parts of [`Descriptions::text`].
#[derive(Debug)]
struct Record {
    definition: Range<usize>,
    /// Empty for the definition itself.
    field: Range<usize>,
    text: Range<usize>,
}

impl Descriptions {
    /// Returns the descriptions, unpacked if nobody else holds them. That takes a few milliseconds
    /// and a little more than a megabyte.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Descriptions>> = Mutex::new(Weak::new());
        Self::held_or_unpacked(&SHARED)
    }

    fn held_or_unpacked(shared: &Mutex<Weak<Self>>) -> Arc<Self> {
        // Whoever waits here would otherwise unpack them once more.
        let mut shared = shared.lock();
        shared.upgrade().unwrap_or_else(|| {
            let unpacked = Arc::new(Self::unpack());
            *shared = Arc::downgrade(&unpacked);
            unpacked
        })
    }

    fn unpack() -> Self {
        let mut text = String::new();
        DeflateDecoder::new(PACKED)
            .read_to_string(&mut text)
            .expect("the build script packed text");
        let mut records = Vec::new();
        let mut start = 0;
        for record in text.split(char::from(RECORD)) {
            let mut parts = record.split(char::from(UNIT)).map(|part| {
                let range = start..start + part.len();
                // Each part has one separator behind it.
                start = range.end + 1;
                range
            });
            if let (Some(definition), Some(field), Some(text)) =
                (parts.next(), parts.next(), parts.next())
            {
                records.push(Record {
                    definition,
                    field,
                    text,
                });
            }
        }
        Self { text, records }
    }

    /// Returns what is said about a definition and its fields.
    pub fn of(&self, definition: &str) -> Described<'_> {
        let name = |record: &Record| &self.text[record.definition.clone()];
        let start = self
            .records
            .partition_point(|record| name(record) < definition);
        let rest = &self.records[start..];
        let length = rest.partition_point(|record| name(record) == definition);
        Described {
            text: &self.text,
            records: &rest[..length],
        }
    }

    /// Returns the number of descriptions.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }
}

/// The descriptions of one definition.
#[derive(Clone, Copy, Debug)]
pub struct Described<'d> {
    text: &'d str,
    records: &'d [Record],
}

impl<'d> Described<'d> {
    /// Returns the description of the definition itself.
    pub fn definition(self) -> Option<&'d str> {
        self.find("")
    }

    /// Returns the description of a field.
    pub fn field(self, name: &str) -> Option<&'d str> {
        if name.is_empty() {
            return None;
        }
        self.find(name)
    }

    fn find(self, field: &str) -> Option<&'d str> {
        let of = |record: &Record| self.text[record.field.clone()].cmp(field);
        let at = self.records.binary_search_by(of).ok()?;
        Some(&self.text[self.records[at].text.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polyplane_apimachinery::schema::Schemas;

    const POD: &str = "io.k8s.api.core.v1.Pod";

    #[test]
    fn types_and_fields_have_their_own_texts() {
        let all = Descriptions::shared();
        let pod = all.of(POD);
        let text = pod.definition().expect("it is published");
        let spec = pod.field("spec").expect("it has one");
        assert!(text.contains("containers") && spec.contains("pod"));
        assert_ne!(text, spec);
        assert_eq!((pod.field("nothing"), pod.field("")), (None, None));
        assert_eq!(all.of("io.k8s.api.core.v1.Po").definition(), None);
        assert!(!all.is_empty());
    }

    #[test]
    fn they_are_unpacked_once_for_all_holders_and_dropped_with_the_last() {
        let shared = Mutex::new(Weak::new());
        let first = Descriptions::held_or_unpacked(&shared);
        let second = Descriptions::held_or_unpacked(&shared);
        assert!(Arc::ptr_eq(&first, &second));
        drop((first, second));
        assert!(shared.lock().upgrade().is_none());
        assert!(!Descriptions::held_or_unpacked(&shared).is_empty());
    }

    #[test]
    fn what_is_packed_is_small() {
        let all = Descriptions::shared();
        println!(
            "{} descriptions: {} bytes, {} packed",
            all.len(),
            all.text.len(),
            PACKED.len()
        );
        assert!(PACKED.len() < 256 << 10 && all.len() > 2_500);
    }

    #[test]
    fn every_text_about_an_own_type_names_one() {
        let all = Descriptions::shared();
        let text = include_str!("../batteries/polyplane/schemas.json");
        let is_own = |record: &&Record| all.text[record.definition.clone()].starts_with("dev.");
        let mut count = 0;
        for record in all.records.iter().filter(is_own) {
            let part = |range: &Range<usize>| &all.text[range.clone()];
            let (definition, field) = (part(&record.definition), part(&record.field));
            let row = text
                .lines()
                .find(|line| line.starts_with(&format!("\"{definition}\":")));
            let row = row.unwrap_or_else(|| panic!("there is no {definition}"));
            let named = format!("{{\"n\":\"{field}\",");
            assert!(
                field.is_empty() || row.contains(&named),
                "{definition} {field}"
            );
            count += 1;
        }
        println!("{count} texts about own types");
        assert!(count > 80);
    }

    /// Returns true for lists, for which `k8s-openapi` has one type, and for types that no document
    /// shows: options, which become parameters, and what is never stored.
    fn is_left_out(name: &str) -> bool {
        ["List", "Options", "Review", "Request", "Response"]
            .iter()
            .any(|end| name.ends_with(end))
    }

    #[test]
    fn nearly_every_type_and_field_has_a_text() {
        let schemas = Schemas::parse(include_bytes!("../batteries/data/schemas.json"));
        let (schemas, all) = (schemas.expect("they are sound"), Descriptions::shared());
        let (mut types, mut fields) = ([0, 0], [0, 0]);
        for (_, definition) in schemas.iter() {
            let has = |text: Option<&str>| usize::from(text.is_none());
            let name = &*definition.name;
            let described = all.of(name);
            let missing = has(described.definition());
            types[missing] += 1;
            if missing == 1 && !is_left_out(name) {
                println!("without a text: {name}");
            }
            for field in &definition.fields {
                let missing_field = has(described.field(&field.name));
                fields[missing_field] += 1;
                if missing_field == 1 && missing == 0 {
                    println!("without a text: {name} {}", field.name);
                }
            }
        }
        let of = |[with, without]: [usize; 2]| format!("{with} of {}", with + without);
        println!(
            "definitions: {} with a text; fields: {}",
            of(types),
            of(fields)
        );
        assert!(types[0] >= 500 && fields[0] >= 2_000);
    }
}

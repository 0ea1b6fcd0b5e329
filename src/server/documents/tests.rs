//! Tests that tables of kinds share documents.

use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Weak};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::read::GzDecoder;
use polyplane_apimachinery::json;
use polyplane_apimachinery::schema::Schemas;
use polyplane_apimachinery::status::Reason;
use polyplane_apimachinery::structural::Structural;
use polyplane_plane::{ContentId, Key, Memory, Share};
use polyplane_registry::kinds::custom::{
    CompileTurn, ConversionStrategy, CustomKind, CustomSchema,
};
use polyplane_registry::strategy::Plain;
use polyplane_registry::{
    DocumentId, Features, KindTable, Kinds, Resource, ServedGroups, Strategy,
};

use super::{DocumentCache, Documents, HeapSize, Take};
use crate::documents::discovery::Discovery;
use crate::documents::openapi::making::Making;
use crate::documents::openapi::packed::Document;
use crate::documents::openapi::{OpenApiDocuments, Part, Served, index};

pub(super) const ROWS: &str = include_str!("../../batteries/data/rows.json");

pub(super) fn schemas() -> Arc<Schemas> {
    let schemas = Schemas::parse(include_bytes!("../../batteries/data/schemas.json"));
    let mut schemas = schemas.expect("the generated schemas are sound");
    let extended = schemas.extend(include_bytes!("../../batteries/data/discovery.json"));
    extended.expect("so are those of discovery");
    Arc::new(schemas)
}

fn kinds(rows: &str, schemas: &Arc<Schemas>, generation: u64) -> Kinds {
    let plain = |_: &str, _: &str, _: &str| -> Option<Arc<dyn Strategy>> { Some(Arc::new(Plain)) };
    let gates = include_bytes!("../../batteries/data/gates.json");
    let features = Arc::new(Features::parse(gates, b"[]").expect("the gates are sound"));
    let rows = [rows.as_bytes()];
    let table = KindTable::build(&rows, Arc::clone(schemas), features, &plain, generation);
    Kinds::new(Arc::new(table.expect("the rows are sound")), None)
}

pub(super) fn table(rows: &str, schemas: &Arc<Schemas>, generation: u64) -> ServedGroups {
    kinds(rows, schemas, generation).served().into_owned()
}

/// Returns what a plane with these kinds serves.
pub(super) fn served(table: &ServedGroups) -> Served<'_> {
    Served {
        table,
        issues_tokens: true,
    }
}

fn no_documents() -> Documents {
    Documents::new(String::new(), &Memory::default())
}

fn discovery(documents: &Documents, table: &ServedGroups) -> Arc<Discovery> {
    let discovery = documents.discovery(table, &|_| None);
    discovery.expect("they are short")
}

/// Returns what makes documents without a limit.
pub(super) fn making(documents: &OpenApiDocuments) -> Making<'_> {
    Making {
        documents,
        take: &|_| None,
        bytes_max: usize::MAX,
    }
}

#[derive(Debug, Default)]
struct Schema(Bytes, CompileTurn);

impl CustomSchema for Schema {
    fn id(&self) -> ContentId {
        ContentId::of([&self.0[..]])
    }

    fn is_compiled(&self) -> bool {
        true
    }

    fn source(&self) -> &Bytes {
        &self.0
    }

    fn structural(&self) -> Arc<Structural> {
        let structural = Structural::parse(&json!({"type": "object"}));
        Arc::new(structural.expect("it is structural"))
    }

    fn compile_turn(&self) -> &CompileTurn {
        &self.1
    }
}

/// Returns the schema of a kind that an object defines.
pub(super) fn custom_schema() -> Arc<dyn CustomSchema> {
    Arc::new(Schema::default())
}

/// Returns a row like `row`, of a kind that an object defines, with one category.
fn custom_row(row: &Resource, category: &str) -> Arc<Resource> {
    let mut row = row.clone();
    row.categories = vec![category.into()];
    row.custom = Some(CustomKind {
        definition: Key::new("", "definitions", None, "a.b"),
        discovered_verbs: Vec::new().into(),
        metadata: row.definition,
        schema: custom_schema(),
        versions: Vec::new().into(),
        conversion: ConversionStrategy::None,
        scale: None,
        replicas: Vec::new().into(),
    });
    Arc::new(row)
}

/// Returns all documents by name. The name also distinguishes two documents of one content.
fn all(documents: &Documents, table: &ServedGroups) -> Vec<(String, Arc<Document>)> {
    let parts = Part::all(served(table));
    let making = making(documents.open_api());
    let document = |part: Part<'_>| {
        let document = part.document(table, making);
        (part.name(), document.expect("there is no limit"))
    };
    parts.map(document).collect()
}

#[test]
fn tables_of_the_same_kinds_share_every_document() {
    let (documents, schemas) = (no_documents(), schemas());
    let (one, other) = (table(ROWS, &schemas, 1), table(ROWS, &schemas, 2));
    for ((name, first), (_, second)) in all(&documents, &one)
        .into_iter()
        .zip(all(&documents, &other))
    {
        assert!(Arc::ptr_eq(&first, &second), "{name} is made twice");
    }
    let making = making(documents.open_api());
    let index = [&one, &other].map(|table| index(served(table), making));
    let [first, second] = index.map(|index| index.expect("there is no limit"));
    assert!(Arc::ptr_eq(&first, &second));
    let discovery = [&one, &other].map(|table| discovery(&documents, table));
    assert!(Arc::ptr_eq(&discovery[0], &discovery[1]));
}

#[test]
fn planes_without_kinds_of_their_own_copy_no_groups_for_a_document() {
    let one = kinds(ROWS, &schemas(), 1);
    let other = one.clone();
    assert!(std::ptr::eq(&*one.served(), &*other.served()));
}

#[test]
fn a_changed_kind_changes_the_documents_of_its_version_only() {
    let (documents, schemas) = (no_documents(), schemas());
    let changed = ROWS.replacen(r#""shortNames":["deploy"]"#, r#""shortNames":["dp"]"#, 1);
    assert_ne!(changed, ROWS);
    let (before, after) = (table(ROWS, &schemas, 1), table(&changed, &schemas, 2));
    let mut remade = Vec::new();
    for ((name, first), (_, second)) in all(&documents, &before)
        .into_iter()
        .zip(all(&documents, &after))
    {
        if !Arc::ptr_eq(&first, &second) {
            remade.push(name);
        }
    }
    assert_eq!(remade, ["apis/apps/v1"]);
    let mut remade = Vec::new();
    for group in &before.groups {
        for version in &group.versions {
            let part = |table| {
                let name = (group.name.as_str(), version.version.as_str());
                let part = documents.version(table, name, &|_| None);
                let part = part.expect("there is no limit");
                part.expect("both tables have the version")
            };
            let (first, second) = (part(&before), part(&after));
            if !Arc::ptr_eq(&first, &second) {
                remade.push(format!("{}/{}", group.name, version.version));
                assert_ne!(first.resources(), second.resources());
            }
        }
    }
    assert_eq!(remade, ["apps/v1"]);
    use crate::documents::discovery::AggregatedVersion::V2;
    let discovery = [&before, &after].map(|table| discovery(&documents, table));
    let tags = |prefix| {
        discovery
            .each_ref()
            .map(|all| all.aggregated(prefix, V2).etag())
    };
    assert_eq!(tags("api")[0], tags("api")[1]);
    assert_ne!(tags("apis")[0], tags("apis")[1]);
}

#[test]
fn both_forms_of_a_document_have_one_hash_and_are_made_once() {
    let (documents, schemas) = (no_documents(), schemas());
    let table = table(ROWS, &schemas, 1);
    let making = making(documents.open_api());
    for part in Part::all(served(&table)) {
        let json = part.document(&table, making).expect("there is no limit");
        let binary = || part.binary(&table, making).expect("there is no limit");
        assert_eq!(json.etag(), binary().etag());
        assert!(!Arc::ptr_eq(&json, &binary()));
        assert!(Arc::ptr_eq(&binary(), &binary()));
    }
}

#[test]
fn the_aggregated_document_is_encoded_as_upstream_encodes_it() {
    let mut vectors = String::new();
    GzDecoder::new(&include_bytes!("testdata/aggregated.jsonl.gz")[..])
        .read_to_string(&mut vectors)
        .expect("the generator packs text");
    let schemas = schemas();
    let mut seen = Vec::new();
    for line in vectors.lines() {
        let vector: serde_json::Value = serde_json::from_str(line).expect("a vector is JSON");
        let text = |name: &str| vector[name].as_str().expect("text").to_owned();
        let encoded = schemas.proto_of_json(text("json").as_bytes());
        let wanted = STANDARD.decode(text("proto")).expect("base64");
        assert!(encoded.is_some_and(|encoded| encoded == wanted), "{line}");
        seen.push((text("name"), wanted.len()));
    }
    let count = seen.len();
    println!("discovery: {count} of 2 documents are equal to the last byte: {seen:?}");
    assert_eq!(count, 2);
}

#[test]
fn a_hash_changes_with_the_content_and_not_with_the_making() {
    let schemas = schemas();
    let table = table(ROWS, &schemas, 1);
    let made = [(), ()].map(|()| all(&no_documents(), &table));
    for ((name, first), (_, second)) in made[0].iter().zip(&made[1]) {
        assert!(!Arc::ptr_eq(first, second));
        assert_eq!(first.etag(), second.etag(), "{name}");
    }
}

#[test]
fn schemas_that_differ_share_nothing() {
    let (schemas, others) = (schemas(), schemas());
    let tables = [&schemas, &others].map(|schemas| table(ROWS, schemas, 1));
    assert_ne!(tables[0].content, tables[1].content);
}

/// Each version of a definition lists all its short names and categories, so one definition could make gigabytes.
#[test]
fn discovery_that_is_too_long_is_refused_before_it_is_made_and_a_long_one_counts() {
    let (documents, schemas) = (no_documents(), schemas());
    let mut table = table(ROWS, &schemas, 1);
    let row = custom_row(
        &table.groups[1].versions[0].resources[0],
        &"x".repeat(1 << 20),
    );
    let memory = Arc::new(Memory::default());
    let some: Take<'_> = &|bytes| memory.take(Share::Answers, bytes);
    let none: Take<'_> = &|_| None;
    for (kinds, take, refused) in [
        (17, some, Some(Reason::RequestEntityTooLarge)),
        (3, none, Some(Reason::TooManyRequests)),
        (3, some, None),
    ] {
        table.groups[1].versions[0].resources = vec![Arc::clone(&row); kinds];
        let made = documents.discovery(&table, take);
        assert_eq!(made.err().map(|error| error.reason), refused, "{kinds}");
    }
    assert!(
        memory.used(Share::Answers) >= 6 << 20,
        "both versions count"
    );
    drop(documents);
    assert_eq!(memory.used(Share::Answers), 0);
}

struct Weight(usize);

impl HeapSize for Weight {
    fn bytes(&self) -> usize {
        self.0
    }
}

/// A value that is outdated once its source is dropped.
struct Derived(Weak<()>);

impl HeapSize for Derived {
    fn bytes(&self) -> usize {
        10
    }

    fn is_outdated(&self) -> bool {
        self.0.strong_count() == 0
    }
}

#[test]
fn a_cache_keeps_no_value_whose_source_nobody_has() {
    let (cache, sources) = (DocumentCache::new(1000), [(); 4].map(Arc::new));
    let id = |at: usize| DocumentId::of(&at);
    for (at, source) in sources.iter().enumerate() {
        cache.get(id(at), || Derived(Arc::downgrade(source)));
    }
    let kept = || [0, 1, 2, 3].map(|at| cache.find(id(at)).is_some());
    let [first, second, _third, _fourth] = sources;
    drop(first);
    cache.drop_outdated();
    assert_eq!(kept(), [false, true, true, true]);
    drop(second);
    // Nobody reads the metrics: it also happens when others are made.
    for at in 10..20 {
        cache.get(id(at), || Derived(Weak::new()));
    }
    assert_eq!(kept(), [false, false, true, true]);
    let state = cache.state.lock();
    assert_eq!(state.bytes, 10 * state.entries.len());
}

#[test]
fn requests_for_a_document_at_the_same_time_wait_for_one_making() {
    let (cache, made, start) = (
        DocumentCache::new(100),
        AtomicUsize::new(0),
        Barrier::new(8),
    );
    let id = DocumentId::of(&"a");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                cache.get(id, || {
                    made.fetch_add(1, Ordering::Relaxed);
                    // Gives the other threads time to request the value; the test holds without it.
                    std::thread::yield_now();
                    Weight(1)
                });
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn a_cache_stays_within_its_bytes_and_keeps_what_is_used() {
    let cache = DocumentCache::new(100);
    let ids: Vec<DocumentId> = (0..20).map(|at| DocumentId::of(&at)).collect();
    let first = cache.get(ids[0], || Weight(30));
    for id in &ids[1..] {
        cache.get(*id, || Weight(30));
        let again = cache.get(ids[0], || Weight(30));
        assert!(Arc::ptr_eq(&first, &again), "it was asked for just now");
    }
    assert!(cache.state.lock().bytes <= 100);
    let kept = cache.state.lock().entries.len();
    assert_eq!((kept, cache.state.lock().order.len()), (3, 3));
}

#[test]
fn a_value_that_is_too_large_for_a_cache_takes_no_place_of_others() {
    let (cache, id) = (DocumentCache::new(100), DocumentId::of(&"kept"));
    let kept = cache.get(id, || Weight(30));
    assert_eq!(cache.get(DocumentId::of(&"large"), || Weight(200)).0, 200);
    assert!(Arc::ptr_eq(&kept, &cache.get(id, || Weight(30))));
    let state = cache.state.lock();
    let kept = (state.bytes, state.entries.len(), state.order.len());
    assert_eq!(kept, (30, 1, 1));
}

#[test]
fn a_value_is_kept_longer_than_those_that_it_was_made_of() {
    let (cache, whole) = (DocumentCache::new(100), DocumentId::of(&"whole"));
    let first = cache.get(whole, || {
        for at in 0..4 {
            cache.get(DocumentId::of(&at), || Weight(30));
        }
        Weight(30)
    });
    assert!(Arc::ptr_eq(&first, &cache.get(whole, || Weight(30))));
}

//! The versions of a kind as field management sees them.

use crate::kinds::conversion;
use crate::kinds::conversion::KindVersion;
use crate::kinds::custom::CustomKind;
use crate::kinds::owned_fields::OwnedFields;
use crate::kinds::table::Resource;
use crate::kinds::{Kinds, conversion::is_same};
use crate::plan::{Interrupted, Run};
use crate::request::body::Expected;
use crate::request::call::Call;
use polyplane_apimachinery::schema::decode::{Empties, Numbers};
use polyplane_apimachinery::schema::{DefId, Schemas};
use polyplane_apimachinery::shape::BuiltIn;
use polyplane_apimachinery::structural::{ObjectShape, Structural};
use polyplane_apimachinery::{Str, Value};
use polyplane_managedfields::{
    Answers, Conversion, Filter, Need, Position, Versions, Writer, first_entry, update_values,
};
use std::sync::Arc;

/// The kind whose fields a write manages.
pub(crate) struct ManagedKind {
    kinds: Kinds,
    schemas: Arc<Schemas>,
    definition: DefId,
    custom: Option<CustomKind>,
    /// The API version of the request.
    pub(super) api_version: Str,
    /// The kind's name.
    pub(super) kind: Str,
    pub(super) subresource: Str,
    /// The row of the request; `None` for a kind of a subresource, which has one version.
    row: Option<Arc<Resource>>,
    /// The same kind in other versions that the entries of an object name.
    others: Vec<Arc<Resource>>,
    /// The schemas of a custom kind by API version.
    structurals: Vec<(Str, Arc<Structural>)>,
    /// Whether this is the Scale of a custom kind.
    pub(super) is_custom_scale: bool,
}

impl ManagedKind {
    /// Returns the kind of the request's row.
    pub(crate) fn of_row(call: &Call<'_>) -> Self {
        Self::of(call, call.row, call.subresource())
    }

    /// Returns the kind of a row that is written through a subresource.
    pub(crate) fn of(call: &Call<'_>, row: &Arc<Resource>, subresource: &str) -> Self {
        let structural =
            |custom: &CustomKind| (row.api_version.clone(), custom.schema.structural());
        Self {
            structurals: row.custom.iter().map(structural).collect(),
            kinds: call.tenant.kinds(),
            schemas: Arc::clone(&row.schemas),
            definition: row.definition,
            custom: row.custom.clone(),
            api_version: row.api_version.clone(),
            kind: row.kind.clone(),
            subresource: subresource.into(),
            row: Some(Arc::clone(row)),
            others: Vec::new(),
            is_custom_scale: false,
        }
    }

    /// Returns a kind that only a subresource has.
    pub(crate) fn of_subresource(call: &Call<'_>, kind: Expected<'_>) -> Self {
        Self {
            kinds: call.tenant.kinds(),
            schemas: Arc::clone(call.tenant.base.schemas()),
            definition: kind.definition,
            custom: None,
            api_version: crate::kinds::table::api_version(kind.group, kind.version),
            kind: kind.kind.into(),
            subresource: call.subresource().into(),
            row: None,
            others: Vec::new(),
            structurals: Vec::new(),
            is_custom_scale: call.row.custom.is_some(),
        }
    }

    /// Finds the versions that the entries of an object name.
    pub(super) fn find<'v>(&mut self, versions: impl Iterator<Item = &'v str>) {
        let Some(row) = &self.row else { return };
        for version in versions {
            let known = |row: &Arc<Resource>| row.api_version == version;
            let is_parsed = self.structurals.iter().any(|(known, _)| known == version);
            if known(row) || is_parsed || self.others.iter().any(known) {
                continue;
            }
            let (group, name) = version.split_once('/').unwrap_or(("", version));
            // Upstream converts no object into a version of another group.
            if group != row.group {
                continue;
            }
            // Entries may name versions of a custom kind that are not served.
            let schema = self
                .custom
                .as_ref()
                .and_then(|custom| custom.schema_of(name));
            if let Some(schema) = schema {
                self.structurals.push((version.into(), schema.structural()));
            }
            self.others
                .extend(self.kinds.resolve(group, name, &row.name).cloned());
        }
    }

    /// Returns whether a version exists. Call [`Self::find`] first.
    pub(super) fn has(&self, version: &str) -> bool {
        version == self.api_version
            || self.row_of(version).is_some()
            || self.structurals.iter().any(|(known, _)| known == version)
    }

    /// Returns an object without content.
    pub(super) fn empty(&self) -> &Value {
        self.schemas.get(self.definition).zero()
    }

    /// Brings an applied tree into the form in which objects are compared, but for empty lists and maps
    /// that say something. Returns true if there are such.
    pub(super) fn decode(&self, tree: &mut Value) -> Result<bool, String> {
        let decoded = match &self.custom {
            Some(custom) => custom.decode_metadata(&self.schemas, tree).map(|()| false),
            None => {
                let (schemas, kind) = (&self.schemas, self.definition);
                schemas.decode_unless_said(kind, tree, Numbers::ByValue)
            }
        };
        decoded.map_err(|error| error.to_string())
    }

    /// Returns the managed fields of `new`, which replaces `live`, if no sets are needed for that: the
    /// object is new, or its owners stay as they are. `list` are those of the live object; they are
    /// returned as the error otherwise.
    pub(super) fn update_at_once(
        &self,
        (name, now): (&str, &str),
        live: Option<&Value>,
        new: &Value,
        list: Value,
    ) -> Result<Value, Value> {
        let writer = Writer {
            name,
            subresource: &self.subresource,
            now,
        };
        match self.custom() {
            None => at_once(&self, (self, writer), live, new, list),
            Some(custom) => at_once(&custom, (self, writer), live, new, list),
        }
    }

    /// Returns the versions of a custom kind; `None` for a kind of the base.
    pub(super) fn custom(&self) -> Option<CustomVersions<'_>> {
        self.custom.as_ref().map(|_| CustomVersions(self))
    }

    fn row_of(&self, version: &str) -> Option<&Arc<Resource>> {
        let mut rows = self.row.iter().chain(&self.others);
        rows.find(|row| row.api_version == version)
    }

    fn filters(&self) -> Option<&OwnedFields> {
        self.row.as_ref().map(|row| &*row.owned_fields)
    }

    /// Converts the objects that a step needs.
    pub(super) fn answer(
        &self,
        run: &mut Run<'_>,
        needs: Vec<Need>,
        answers: &mut Answers,
    ) -> Result<(), Interrupted> {
        // All are asked for before the run ends, so that they are converted at once.
        let mut interrupted = None;
        for need in needs {
            for version in &need.versions {
                let converted = self.ask(run, &need, version);
                match converted {
                    Ok(object) => answers.insert(need.subject.clone(), version.clone(), object),
                    Err(Interrupted::NeedsReplies) => {
                        interrupted = Some(Interrupted::NeedsReplies);
                    }
                    Err(other) => return Err(other),
                }
            }
        }
        interrupted.map_or(Ok(()), Err)
    }

    fn ask(
        &self,
        run: &mut Run<'_>,
        need: &Need,
        version: &str,
    ) -> Result<Option<Value>, Interrupted> {
        let (Some(from), Some(to)) = (self.row_of(&need.from), self.row_of(version)) else {
            return Ok(None);
        };
        let forms = (KindVersion::served(from), KindVersion::served(to));
        let mut object = run.convert(from, need.object.clone(), forms)?;
        if to.custom.is_some() {
            return Ok(Some(object));
        }
        let decoded = to
            .schemas
            .decode_again(to.definition, &mut object, Empties::Keep);
        Ok(decoded.is_ok().then_some(object))
    }
}

fn at_once<'s, V: Versions<'s>>(
    versions: &V,
    (kind, writer): (&ManagedKind, Writer<'_>),
    live: Option<&Value>,
    new: &Value,
    mut list: Value,
) -> Result<Value, Value> {
    let version = &kind.api_version;
    match live {
        Some(live) => match update_values(versions, version, writer, (live, new), &mut list) {
            true => Ok(list),
            false => Err(list),
        },
        None => first_entry(versions, version, writer, (kind.empty(), new))
            .map(Option::unwrap_or_default)
            .ok_or(list),
    }
}

impl<'s> Versions<'s> for &'s ManagedKind {
    type Shape = BuiltIn<'s>;

    fn position(&self, version: &str) -> Option<Position<Self::Shape>> {
        let kind: &'s ManagedKind = self;
        let (schemas, definition) = match kind.row_of(version) {
            Some(row) => (&row.schemas, row.definition),
            None if version == kind.api_version => (&kind.schemas, kind.definition),
            None => return None,
        };
        Some(Position::root(BuiltIn::root(schemas, definition)))
    }

    fn number(&self, version: &str) -> Option<u64> {
        match self.row_of(version) {
            Some(row) => Some(BuiltIn::number(&row.schemas, row.definition)),
            None if version == self.api_version => {
                Some(BuiltIn::number(&self.schemas, self.definition))
            }
            None => None,
        }
    }

    fn filter(&self, version: &str) -> Option<&Filter> {
        self.filters()?.filter(&self.subresource, version)
    }

    fn may_not_fit(&self, version: &str, object: &Value) -> bool {
        // Decoded objects have values of the right types.
        let row = self.row_of(version);
        match row {
            Some(row) => row.schemas.lacks_keys(row.definition, object),
            None => self.schemas.lacks_keys(self.definition, object),
        }
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Conversion {
        let (Some(from), Some(to)) = (self.row_of(from), self.row_of(to)) else {
            return Conversion::Missing;
        };
        let forms = (KindVersion::served(from), KindVersion::served(to));
        if from.definition == to.definition || is_same(from, forms.0, forms.1) {
            return Conversion::Same;
        }
        if from.strategy.converter().is_some() {
            return Conversion::Ask;
        }
        // What a conversion writes into annotations is canonical.
        let mut object = object.clone();
        let decoded = from
            .schemas
            .decode_again(from.definition, &mut object, Empties::Keep);
        if decoded.is_err() {
            return Conversion::Missing;
        }
        match conversion::in_place(&self.kinds, from, object, forms) {
            Ok(mut object) => {
                match to
                    .schemas
                    .decode_again(to.definition, &mut object, Empties::Keep)
                {
                    Ok(_) => Conversion::Done(object),
                    Err(_) => Conversion::Missing,
                }
            }
            Err(_) => Conversion::Missing,
        }
    }
}

/// The versions of a custom kind.
#[derive(Clone, Copy)]
pub(super) struct CustomVersions<'s>(&'s ManagedKind);

impl<'s> Versions<'s> for CustomVersions<'s> {
    type Shape = ObjectShape<'s>;

    fn position(&self, version: &str) -> Option<Position<Self::Shape>> {
        let kind = self.0;
        let mut known = kind.structurals.iter();
        let (_, structural) = known.find(|(known, _)| known == version)?;
        let metadata = kind.custom.as_ref()?.metadata;
        let shape = ObjectShape::root(structural, &kind.schemas, metadata);
        Some(Position::root(shape))
    }

    fn filter(&self, version: &str) -> Option<&Filter> {
        self.0.filters()?.filter(&self.0.subresource, version)
    }

    fn may_bring_unknown(&self) -> bool {
        true
    }

    fn drops_unknown(&self) -> bool {
        false
    }

    fn convert(&self, _: &Value, from: &str, to: &str) -> Conversion {
        let kind = self.0;
        let asks = |row: &Arc<Resource>| row.strategy.converter().is_some();
        if kind.row.as_ref().is_some_and(asks) {
            return match (kind.row_of(from), kind.row_of(to)) {
                (Some(_), Some(_)) => Conversion::Ask,
                _ => Conversion::Missing,
            };
        }
        // Both exist, because a step with entries in other versions ends before it converts.
        Conversion::Same
    }
}

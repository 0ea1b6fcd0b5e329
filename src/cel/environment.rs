//! What an expression may use: variables, functions, types and the syntax.

use std::collections::BTreeMap;
use std::sync::Arc;

use polyplane_strconv::number::atoi;

use crate::library::{Library, Run};
use crate::parse::Syntax;
use crate::types::Type;
use crate::value::Fault;

/// A way to call a function.
#[derive(Debug, Clone)]
pub struct Overload {
    /// The name of the overload, which costs go by.
    pub id: Arc<str>,
    /// Whether the first argument is a receiver.
    pub member: bool,
    /// The types of the arguments, the receiver first.
    pub parameters: Vec<Type>,
    /// The type of the result.
    pub result: Type,
}

/// A function: its overloads, and the code if the overloads are not steps of the evaluation.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub overloads: Vec<Overload>,
    pub run: Option<Run>,
}

/// Returns the offset from UTC, in seconds, of a named time zone at a time in seconds since 1970.
pub(crate) type Zones = fn(&str, i64) -> Option<i32>;

/// Nanoseconds of a minute and of a second.
const MINUTE_NANOS: i64 = 60_000_000_000;
const SECOND_NANOS: i64 = 1_000_000_000;

/// Looks an offset up in the time zones that this program carries, whatever machine it runs on. Names are as they
/// are written there; `Local` is UTC, as on a server.
fn known_offset(name: &str, seconds: i64) -> Option<i32> {
    if name == "Local" {
        return Some(0);
    }
    let zone = jiff::tz::TimeZone::get(name).ok();
    let zone = zone.filter(|zone| zone.iana_name() == Some(name))?;
    let at = jiff::Timestamp::from_second(seconds).ok()?;
    Some(zone.to_offset(at).seconds())
}

/// The function that Kubernetes 1.37 has and 1.36 has not.
const LATEST: &str = "includes";

/// What an expression may use.
#[derive(Debug, Clone)]
pub struct Environment {
    /// The syntax.
    pub syntax: Syntax,
    /// The namespace in which names are looked up first; empty for none.
    pub container: String,
    pub(crate) variables: Vec<(Arc<str>, Type)>,
    pub(crate) by_name: BTreeMap<Arc<str>, usize>,
    pub(crate) functions: BTreeMap<Arc<str>, Function>,
    /// The function that [`Self::admit_latest`] keeps away from new expressions.
    latest: Option<Function>,
    /// The names of types that an expression may use as values.
    types: BTreeMap<Arc<str>, Type>,
    /// The fields of types with fields.
    structs: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Type>>,
    /// The types that have every field, and below which every path is such a type.
    open_structs: Vec<Arc<str>>,
    /// See [`Self::claim_fields`].
    claiming_structs: Vec<Arc<str>>,
    /// See [`Self::name_schema_types`].
    names_schema_types: bool,
    pub(crate) zones: Zones,
    /// Whether constants of an expression are validated too: texts of times and patterns, formats,
    /// and that the elements of a list have one type.
    pub validated: bool,
}

impl Environment {
    /// Makes an environment with the standard functions and `libraries`.
    #[must_use]
    pub fn new(syntax: Syntax, libraries: &[&Library]) -> Self {
        let mut made = Self {
            syntax,
            container: String::new(),
            variables: Vec::new(),
            by_name: BTreeMap::new(),
            functions: BTreeMap::new(),
            latest: None,
            types: BTreeMap::new(),
            structs: BTreeMap::new(),
            open_structs: Vec::new(),
            claiming_structs: Vec::new(),
            names_schema_types: false,
            zones: |_, _| None,
            validated: false,
        };
        for name in [
            "bool", "int", "uint", "double", "string", "bytes", "list", "map", "type",
        ] {
            made.declare_type(name, name);
        }
        made.declare_type("null_type", "null");
        made.declare_type("google.protobuf.Duration", "duration");
        made.declare_type("google.protobuf.Timestamp", "timestamp");
        for library in crate::library::STANDARD.iter().chain(libraries) {
            made.add(library);
        }
        made
    }

    /// Returns the environment of Kubernetes 1.37, without variables.
    #[must_use]
    pub fn kubernetes() -> Self {
        let mut made = Self::new(Syntax::kubernetes(), crate::library::KUBERNETES);
        made.zones = known_offset;
        made.validated = true;
        made
    }

    /// Returns the environment of Kubernetes 1.37 for expressions that are new: without the functions that
    /// servers of 1.36 do not know, so that these can go on with what is stored.
    #[must_use]
    pub fn for_new_expressions() -> Self {
        let mut made = Self::kubernetes();
        made.admit_latest(false);
        made
    }

    /// Sets whether expressions may use the functions that servers of 1.36 do not know. Expressions that are stored
    /// already may.
    pub fn admit_latest(&mut self, admits: bool) {
        if !admits {
            let latest = self.functions.remove(LATEST);
            self.latest = latest.or(self.latest.take());
        } else if let Some(latest) = self.latest.take() {
            self.functions.insert(LATEST.into(), latest);
        }
    }

    /// Returns an environment with every library of this crate.
    #[must_use]
    pub fn full() -> Self {
        let mut made = Self::new(Syntax::full(), crate::library::KUBERNETES);
        for library in crate::library::BEYOND {
            made.add(library);
        }
        made
    }

    fn declare_type(&mut self, name: &str, text: &str) {
        if let Some(parsed) = Type::parse(text) {
            self.types.insert(name.into(), parsed);
        }
    }

    fn add(&mut self, library: &Library) {
        for name in library.types {
            self.declare_type(name, name);
        }
        for line in library.declarations.lines() {
            if let Some((name, overload)) = declaration(line.trim()) {
                self.declare_function(name, overload);
            }
        }
        for (name, run) in library.runs {
            if let Some(function) = self.functions.get_mut(*name) {
                function.run = Some(*run);
            }
        }
    }

    /// Declares an overload of a function. A function without code fails with `no such overload`.
    pub fn declare_function(&mut self, name: &str, overload: Overload) {
        let function = self
            .functions
            .entry(name.into())
            .or_insert_with(|| Function {
                overloads: Vec::new(),
                run: None,
            });
        function.overloads.push(overload);
    }

    /// Declares a variable. Evaluation takes the values in the order of declaration.
    pub fn declare(&mut self, name: &str, of: Type) {
        let name: Arc<str> = name.into();
        if let Some(at) = self.by_name.get(&name) {
            self.variables[*at].1 = of;
            return;
        }
        self.by_name.insert(name.clone(), self.variables.len());
        self.variables.push((name, of));
    }

    /// Declares a type with fields.
    pub fn declare_struct<N: Into<Arc<str>>>(
        &mut self,
        name: impl Into<Arc<str>>,
        fields: impl IntoIterator<Item = (N, Type)>,
    ) {
        let name = name.into();
        let fields = fields.into_iter();
        let fields = fields.map(|(name, of)| (name.into(), of));
        self.structs.insert(Arc::clone(&name), fields.collect());
        self.types.insert(Arc::clone(&name), Type::Struct(name));
    }

    /// Declares a field of a type with fields.
    pub fn declare_field(&mut self, of: &str, name: &str, field: Type) {
        if let Some(fields) = self.structs.get_mut(of) {
            fields.insert(name.into(), field);
        }
    }

    /// Declares a type that has every field, and such a type for every path below: `name.a.b`. Of the fields
    /// no type is known.
    pub fn declare_open_struct(&mut self, name: &str) {
        self.open_structs.push(name.into());
    }

    /// Makes a type claim every field that is not declared, of a type that no value has, as upstream's JSON patches do:
    /// a message may have such a field if the type of its value is not known.
    pub fn claim_fields(&mut self, name: &str) {
        self.claiming_structs.push(name.into());
    }

    pub(crate) fn claims_fields(&self, name: &str) -> bool {
        self.claiming_structs.iter().any(|known| **known == *name)
    }

    fn is_open(&self, name: &str) -> bool {
        self.open_structs.iter().any(|open| {
            let below = name.strip_prefix(&**open);
            below.is_some_and(|below| below.is_empty() || below.starts_with('.'))
        })
    }

    /// Lets expressions name `duration` and `timestamp` as schemas do. As upstream, whose checker finds these names
    /// among the types of a schema, such an expression has types, but there is no value for the name:
    /// [`Checked::check_constants`](crate::Checked::check_constants) refuses it.
    pub fn name_schema_types(&mut self) {
        self.names_schema_types = true;
    }

    /// Returns the type that only schemas give this name.
    pub(crate) fn schema_type(&self, name: &str) -> Option<Type> {
        match name {
            "duration" if self.names_schema_types => Some(Type::Duration),
            "timestamp" if self.names_schema_types => Some(Type::Timestamp),
            _ => None,
        }
    }

    /// Returns the type of this name.
    pub(crate) fn named_type(&self, name: &str) -> Option<Type> {
        let open = || self.is_open(name).then(|| Type::Struct(name.into()));
        self.types.get(name).cloned().or_else(open)
    }

    /// Returns the type of a field of the type of this name; `None` if it has no such field.
    pub(crate) fn field_type(&self, of: &str, field: &str) -> Option<Type> {
        let declared = self.structs.get(of).and_then(|fields| fields.get(field));
        let open = || self.is_open(of).then_some(Type::Dyn);
        declared.cloned().or_else(open)
    }

    /// Returns the names that `name` may stand for, the most specific first.
    pub(crate) fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(absolute) = name.strip_prefix('.') {
            return vec![absolute.to_owned()];
        }
        let mut found = Vec::new();
        let mut prefix = self.container.as_str();
        while !prefix.is_empty() {
            found.push(format!("{prefix}.{name}"));
            prefix = prefix.rsplit_once('.').map_or("", |(before, _)| before);
        }
        found.push(name.to_owned());
        found
    }

    pub(crate) fn function(&self, name: &str) -> Option<(&Arc<str>, &Function)> {
        self.candidates(name)
            .iter()
            .find_map(|name| self.functions.get_key_value(name.as_str()))
    }

    /// Returns a time zone's offset from UTC in seconds.
    pub(crate) fn zone(&self, name: &str, seconds: i64) -> Result<i64, Fault> {
        if name.is_empty() || name == "UTC" {
            return Ok(0);
        }
        let Some((hours, minutes)) = name.split_once(':') else {
            let found = (self.zones)(name, seconds).map(i64::from);
            return found.ok_or_else(|| Fault::error(format!("unknown time zone {name}")));
        };
        let number = |text: &str| atoi(text).map_err(|error| Fault::error(error.to_string()));
        let (hours_east, part) = (number(hours)?, number(minutes)?);
        let is_west = hours.starts_with('-');
        let part = if is_west { part.wrapping_neg() } else { part };
        // As upstream, which counts nanoseconds and has no limit.
        let minutes_east = hours_east.wrapping_mul(60).wrapping_add(part);
        Ok(minutes_east.wrapping_mul(MINUTE_NANOS) / SECOND_NANOS)
    }
}

/// Reads `id: receiver.name(types) -> type` or `id: name(types) -> type`. The name of a member
/// function stands behind a colon in front of its types: `id: name:(receiver; types) -> type`.
fn declaration(line: &str) -> Option<(&str, Overload)> {
    let (id, rest) = line.split_once(": ")?;
    let (head, result) = rest.rsplit_once(" -> ")?;
    let open = head.find('(')?;
    let (name, types) = head.split_at(open);
    let member = name.ends_with(':');
    let types = types.strip_prefix('(')?.strip_suffix(')')?;
    let mut parameters = Vec::new();
    let (mut depth, mut from) = (0_usize, 0);
    for (at, letter) in types.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parameters.push(Type::parse(&types[from..at])?);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !types.trim().is_empty() {
        parameters.push(Type::parse(&types[from..])?);
    }
    let overload = Overload {
        id: id.into(),
        member,
        parameters,
        result: Type::parse(result)?,
    };
    Some((name.trim_end_matches(':'), overload))
}

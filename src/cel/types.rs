//! The types of expressions and how declarations write them.

use std::fmt;
use std::sync::Arc;

/// The type of an expression.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// Known only when the value is.
    Dyn,
    /// The same, declared as protobuf's message for it. Loops do not go over it.
    Any,
    /// The type of what has been complained about.
    Error,
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A signed number.
    Int,
    /// An unsigned number.
    Uint,
    /// A floating-point number.
    Double,
    /// A text.
    String,
    /// Bytes.
    Bytes,
    /// A span of time.
    Duration,
    /// A point in time.
    Timestamp,
    /// A list of a type.
    List(Arc<Type>),
    /// A map from a type to another one.
    Map(Arc<(Type, Type)>),
    /// The type of a type; `None` if it is not known of which.
    Type(Option<Arc<Type>>),
    /// A type that is yet to be found.
    Param(Arc<str>),
    /// A library's type with its parameters; `optional_type` is one.
    Opaque(Arc<str>, Arc<[Type]>),
    /// A type with fields, which the environment knows by its name.
    Struct(Arc<str>),
    /// A type or `null`.
    Wrapper(Arc<Type>),
}

/// The name of the type of optional values.
pub(crate) const OPTIONAL: &str = "optional_type";

impl Type {
    /// Returns the type of lists of `element`.
    #[must_use]
    pub fn list(element: Type) -> Self {
        Self::List(Arc::new(element))
    }

    /// Returns the type of maps from `key` to `value`.
    #[must_use]
    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    /// Returns the type of optional values.
    #[must_use]
    pub fn optional(inner: Type) -> Self {
        Self::Opaque(OPTIONAL.into(), Arc::new([inner]))
    }

    /// Reads a type as declarations write it; a single capital letter is a parameter.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (parsed, rest) = read(text.trim())?;
        rest.is_empty().then_some(parsed)
    }

    /// Returns the name that the type has as a value.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Any => "google.protobuf.Any",
            Self::Error => "!error!",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Type(_) => "type",
            Self::Param(name) | Self::Opaque(name, _) | Self::Struct(name) => name,
            Self::Wrapper(inner) => inner.name(),
        }
    }

    /// Returns the parameters of the type.
    #[must_use]
    pub fn parameters(&self) -> Vec<&Type> {
        match self {
            Self::List(inner) => vec![inner],
            Self::Map(pair) => vec![&pair.0, &pair.1],
            Self::Opaque(_, inner) => inner.iter().collect(),
            Self::Type(Some(inner)) => vec![inner],
            _ => Vec::new(),
        }
    }

    /// Returns the name with the names of the parameters: what upstream calls the type outside of complaints
    /// about an expression.
    #[must_use]
    pub fn declared_name(&self) -> String {
        let name = match self {
            Self::Wrapper(inner) => format!("wrapper({})", inner.name()),
            other => other.name().to_owned(),
        };
        let parameters = self.parameters();
        match parameters.is_empty() {
            true => name,
            false => {
                let names: Vec<String> = parameters.into_iter().map(Self::declared_name).collect();
                format!("{name}({})", names.join(", "))
            }
        }
    }

    /// Returns what an optional holds.
    #[must_use]
    pub fn unwrapped(&self) -> Option<&Type> {
        match self {
            Self::Opaque(name, inner) if **name == *OPTIONAL => inner.first(),
            _ => None,
        }
    }

    /// Returns true for the type of a value that can be anything.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        matches!(self, Self::Dyn | Self::Any | Self::Error)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => out.write_str("any"),
            Self::Null => out.write_str("null"),
            Self::Duration => out.write_str("duration"),
            Self::Timestamp => out.write_str("timestamp"),
            Self::Wrapper(inner) => write!(out, "wrapper({inner})"),
            other => {
                out.write_str(other.name())?;
                let parameters = other.parameters();
                for (number, parameter) in parameters.iter().enumerate() {
                    out.write_str(if number == 0 { "(" } else { ", " })?;
                    write!(out, "{parameter}")?;
                }
                out.write_str(if parameters.is_empty() { "" } else { ")" })
            }
        }
    }
}

/// Reads a type at the beginning; returns it with what follows.
fn read(text: &str) -> Option<(Type, &str)> {
    let inner = |letter: char| letter.is_alphanumeric() || "_.".contains(letter);
    let end = text.find(|letter| !inner(letter)).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    let mut parameters = Vec::new();
    if let Some(mut behind) = rest.strip_prefix('(') {
        loop {
            let (parameter, next) = read(behind.trim_start())?;
            parameters.push(parameter);
            match next.trim_start().split_at_checked(1)? {
                (",", next) => behind = next,
                (")", next) => {
                    rest = next;
                    break;
                }
                _ => return None,
            }
        }
    }
    let mut parameters_left = parameters.clone().into_iter();
    let mut next = || parameters_left.next();
    let found = match name {
        "" => return None,
        "dyn" | "any" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "duration" | "google.protobuf.Duration" => Type::Duration,
        "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
        "list" => Type::list(next().unwrap_or(Type::Dyn)),
        "map" => Type::map(next().unwrap_or(Type::Dyn), next().unwrap_or(Type::Dyn)),
        "type" => Type::Type(next().map(Arc::new)),
        "wrapper" => Type::Wrapper(Arc::new(next()?)),
        one if one.len() == 1 => Type::Param(one.into()),
        other => Type::Opaque(other.into(), parameters.into()),
    };
    Some((found, rest))
}

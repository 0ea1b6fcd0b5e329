//! Looks up the type at a path such as `spec.containers[0].image`.

use super::{DefId, Field, Schemas, Type};

/// The reason why a path leads to no type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PathError {
    /// There is no field of this name.
    #[error("no field {name:?} in {definition}")]
    Field {
        /// The name that was looked up.
        name: String,
        /// The definition in which it was looked up.
        definition: String,
    },
    /// The path continues behind a value that has no parts.
    #[error("{rest:?} leads into a value without parts")]
    Leaf {
        /// The rest of the path.
        rest: String,
    },
    /// A bracket is not closed.
    #[error("bracket not closed at {rest:?}")]
    Bracket {
        /// The rest of the path.
        rest: String,
    },
}

impl Schemas {
    /// Returns the type at `path` in objects of `root`. Brackets hold an index, a key or anything
    /// else; behind a map a name is a key.
    ///
    /// # Errors
    /// Returns an error if the path leads to no type.
    pub fn resolve(&self, root: DefId, path: &str) -> Result<Type, PathError> {
        let mut ty = Type::Ref(root);
        let mut rest = path.trim_start_matches('.');
        while !rest.is_empty() {
            let (step, after) = next(rest)?;
            ty = self
                .descend(&ty, step)
                .ok_or_else(|| self.stranded(&ty, step, rest))?;
            rest = after;
        }
        Ok(ty)
    }

    /// Returns the field at the end of a chain of member names. The chain passes through lists and
    /// maps.
    pub fn field_at(&self, root: DefId, names: &[&str]) -> Option<&Field> {
        let (last, parents) = names.split_last()?;
        let mut at = root;
        for name in parents {
            at = self.get(at).field(name)?.ty.definition()?;
        }
        self.get(at).field(last)
    }

    fn descend(&self, ty: &Type, step: PathSegment<'_>) -> Option<Type> {
        match (ty, step) {
            (Type::Nullable(inner), step) => self.descend(inner, step),
            (Type::List(item), PathSegment::Bracket) | (Type::Map(item), _) => {
                Some(item.as_ref().clone())
            }
            (
                Type::Ref(id) | Type::SchemaOrBool(id) | Type::SchemaOrArray(id),
                PathSegment::Name(name),
            ) => self.get(*id).field(name).map(|field| field.ty.clone()),
            (Type::SchemaOrArray(id), PathSegment::Bracket) => Some(Type::Ref(*id)),
            (Type::SchemaOrStrings(_), PathSegment::Bracket) => Some(Type::String),
            (Type::Raw | Type::Json | Type::FieldsV1, _) => Some(Type::Json),
            _ => None,
        }
    }

    fn stranded(&self, ty: &Type, step: PathSegment<'_>, rest: &str) -> PathError {
        match (ty, step) {
            (Type::Ref(id), PathSegment::Name(name)) => PathError::Field {
                name: name.to_owned(),
                definition: self.get(*id).name.to_string(),
            },
            _ => PathError::Leaf {
                rest: rest.to_owned(),
            },
        }
    }
}

#[derive(Clone, Copy)]
enum PathSegment<'a> {
    Name(&'a str),
    Bracket,
}

fn next(path: &str) -> Result<(PathSegment<'_>, &str), PathError> {
    if let Some(inside) = path.strip_prefix('[') {
        let end = inside.find(']').ok_or_else(|| PathError::Bracket {
            rest: path.to_owned(),
        })?;
        return Ok((
            PathSegment::Bracket,
            inside[end + 1..].trim_start_matches('.'),
        ));
    }
    let end = path.find(['.', '[']).unwrap_or(path.len());
    Ok((
        PathSegment::Name(&path[..end]),
        path[end..].strip_prefix('.').unwrap_or(&path[end..]),
    ))
}

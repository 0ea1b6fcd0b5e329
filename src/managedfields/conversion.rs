//! Objects in other versions. Steps ask for them; the caller converts and calls the step again.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use polyplane_apimachinery::shape::Shape;
use polyplane_apimachinery::value::{Str, Value};

use crate::fault::Faults;
use crate::filter::Filter;
use crate::position::Position;
use crate::walk::validate::{Duplicates, validate};

/// What the steps must know about the versions of a kind.
pub trait Versions<'s> {
    /// The positions in the schemas of the versions.
    type Shape: Shape<'s>;

    /// Returns the position of whole objects of a version; `None` if there is no such version.
    fn position(&self, version: &str) -> Option<Position<Self::Shape>>;

    /// Returns a number, not zero, of everything that the position of a version depends on; `None` if
    /// there is none. What was found out about a set of fields by the same number is true again.
    fn number(&self, version: &str) -> Option<u64> {
        let _ = version;
        None
    }

    /// Returns the filter of the fields that this write may own in a version.
    fn filter(&self, version: &str) -> Option<&Filter>;

    /// Returns whether an object of a version has to be checked against its schema. Whoever knows
    /// that it fits saves the walk.
    fn may_not_fit(&self, version: &str, object: &Value) -> bool {
        let _ = (version, object);
        true
    }

    /// Returns whether a converted object may have members that its new version does not know. Such
    /// an object fits the version no more than one that a client sends.
    fn may_bring_unknown(&self) -> bool {
        false
    }

    /// Returns whether the next write drops entries in versions that do not exist. If not, nothing can be
    /// applied to an object with such entries, and other writes leave all its entries as they are.
    /// Upstream's converter of built-in kinds reports such a version as missing, that of custom kinds as
    /// an error.
    fn drops_unknown(&self) -> bool {
        true
    }

    /// Converts an object, if that needs no call.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Conversion;
}

/// The answer to a conversion.
#[derive(Clone, Debug)]
pub enum Conversion {
    /// The object is the same in both versions, as far as fields have owners.
    Same,
    /// The converted object.
    Done(Value),
    /// There is no such version any more.
    Missing,
    /// The conversion needs a call: the step asks for it.
    Ask,
}

/// The objects that a step may need in other versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The stored object.
    Live,
    /// The object as it is to be stored; while applying, before anything is removed from it.
    New,
    /// The applied object without the fields that its manager gave up.
    Pruned,
    /// That object with what is owned in this version.
    Restored(Str),
    /// The result of applying.
    Result,
}

/// An object that a step needs in other versions.
#[derive(Clone, Debug)]
pub struct Need {
    /// The name under which the answer is expected.
    pub subject: Subject,
    /// The object.
    pub object: Value,
    /// The version of the object.
    pub from: Str,
    /// The versions that are needed.
    pub versions: Vec<Str>,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub enum Step<T> {
    /// It is done.
    Done(T),
    /// It needs these objects. Add them to the [`Answers`] and call the step again with the same
    /// arguments. A conversion that fails ends the write.
    Need(Vec<Need>),
}

/// The conversions that are known.
#[derive(Clone, Debug, Default)]
pub struct Answers(BTreeMap<(Subject, Str), Option<Arc<Value>>>);

impl Answers {
    /// Adds the object that a step needed; `None` says that there is no such version any more.
    pub fn insert(&mut self, subject: Subject, version: impl Into<Str>, object: Option<Value>) {
        self.0
            .insert((subject, version.into()), object.map(Arc::new));
    }
}

/// An object in one version, with the name under which it is converted.
pub(crate) struct Object<'a> {
    pub(crate) subject: Subject,
    pub(crate) tree: Tree<'a>,
    pub(crate) version: Str,
}

/// A tree that is borrowed or shared.
#[derive(Clone)]
pub(crate) enum Tree<'a> {
    Borrowed(&'a Value),
    Shared(Arc<Value>),
}

impl Deref for Tree<'_> {
    type Target = Value;
    fn deref(&self) -> &Value {
        match self {
            Self::Borrowed(tree) => tree,
            Self::Shared(tree) => tree,
        }
    }
}

/// The conversions of one run of a step: those that are answered, those that were made in place, and
/// those that are missing.
pub(crate) struct Converter<'a, V> {
    pub(crate) versions: &'a V,
    known: Answers,
    needs: Vec<Need>,
    /// The first converted object that does not fit its version.
    unfit: Option<Unfit>,
}

/// A run must end.
pub(crate) enum Unanswered {
    /// Conversions are missing.
    Needs(Vec<Need>),
    /// A converted object does not fit its version.
    Unfit(Unfit),
}

/// A converted object that does not fit its version.
#[derive(Clone, Debug)]
pub(crate) struct Unfit {
    pub(crate) subject: Subject,
    pub(crate) version: Str,
    pub(crate) faults: Faults,
}

/// An object in another version; `None` if there is no such version any more.
pub(crate) type Converted<'a> = Option<Tree<'a>>;

impl<'a, 's, V: Versions<'s>> Converter<'a, V> {
    pub(crate) fn new(versions: &'a V, answers: &Answers) -> Self {
        Self {
            versions,
            known: answers.clone(),
            needs: Vec::new(),
            unfit: None,
        }
    }

    /// Returns the object in a version. If that needs a call, the need is noted and the result is
    /// not known: [`Converter::check`] then ends the run, as it does if the object does not fit.
    pub(crate) fn convert<'o>(&mut self, object: &Object<'o>, to: &str) -> Converted<'o> {
        if object.version == to {
            return Some(object.tree.clone());
        }
        let converted = self.found(object, to);
        if let (Some(tree), true, None) =
            (&converted, self.versions.may_bring_unknown(), &self.unfit)
            && let Some(position) = self.versions.position(to)
            && let Err(faults) = validate(position, tree, Duplicates::Refused)
        {
            self.unfit = Some(Unfit {
                subject: object.subject.clone(),
                version: to.into(),
                faults,
            });
        }
        converted
    }

    fn found<'o>(&mut self, object: &Object<'o>, to: &str) -> Converted<'o> {
        let key = (object.subject.clone(), Str::from(to));
        if let Some(known) = self.known.0.get(&key) {
            return known.clone().map(Tree::Shared);
        }
        let converted = match self.versions.convert(&object.tree, &object.version, to) {
            Conversion::Same => return Some(object.tree.clone()),
            Conversion::Done(value) => Some(Arc::new(value)),
            Conversion::Missing => None,
            Conversion::Ask => {
                self.ask(object, to);
                return None;
            }
        };
        self.known.0.insert(key, converted.clone());
        converted.map(Tree::Shared)
    }

    fn ask(&mut self, object: &Object<'_>, to: &str) {
        let asked = |need: &&mut Need| need.subject == object.subject;
        if let Some(need) = self.needs.iter_mut().find(asked) {
            if !need.versions.iter().any(|version| version == to) {
                need.versions.push(to.into());
            }
            return;
        }
        self.needs.push(Need {
            subject: object.subject.clone(),
            object: (*object.tree).clone(),
            from: object.version.clone(),
            versions: vec![to.into()],
        });
    }

    /// Ends the run if a conversion is missing or has made an object that does not fit.
    pub(crate) fn check(&mut self) -> Result<(), Unanswered> {
        if !self.needs.is_empty() {
            return Err(Unanswered::Needs(std::mem::take(&mut self.needs)));
        }
        match self.unfit.take() {
            Some(unfit) => Err(Unanswered::Unfit(unfit)),
            None => Ok(()),
        }
    }
}

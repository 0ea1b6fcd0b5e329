//! Names for values that differ from run to run: versions, uids, generated names.
//!
//! A value gets its symbol from the step that first showed it, so one surprising version in one
//! step does not rename those of all later steps. The order of versions is stored separately.

use std::collections::{BTreeMap, HashMap};

/// The symbols of one run of a scenario.
#[derive(Debug, Default)]
pub struct Symbols {
    versions: BTreeMap<u64, String>,
    uids: HashMap<String, String>,
    names: Vec<(String, String)>,
}

impl Symbols {
    /// Assigns symbols to versions of objects that no earlier step showed.
    pub fn learn_versions(&mut self, step: &str, mut versions: Vec<u64>) {
        versions.sort_unstable();
        versions.dedup();
        versions.retain(|version| !self.versions.contains_key(version));
        for (index, version) in versions.into_iter().enumerate() {
            self.versions.insert(version, numbered("rv", step, index));
        }
    }

    /// Records that the server generated `name` from `prefix`.
    pub fn learn_generated(&mut self, prefix: &str, name: &str) {
        if name.len() > prefix.len() && name.starts_with(prefix) {
            self.names
                .push((name.to_owned(), format!("{prefix}<suffix>")));
        }
    }

    /// Returns the symbol of an object's version, if a step has shown it.
    pub fn version(&self, version: u64) -> Option<&str> {
        self.versions.get(&version).map(String::as_str)
    }

    /// Returns the symbol of a version that belongs to no object: that of a list or a bookmark.
    /// Other clients may have advanced the store, so the symbol names the newest object's version
    /// that it has reached.
    pub fn version_of_list(&self, version: u64) -> String {
        match self.versions.range(..=version).next_back() {
            Some((_, symbol)) => format!("at least {symbol}"),
            None => "<rv>".to_owned(),
        }
    }

    /// Returns the symbol of a uid, and assigns one at first sight.
    pub fn uid(&mut self, step: &str, uid: &str) -> String {
        if let Some(symbol) = self.uids.get(uid) {
            return symbol.clone();
        }
        let of_step = |symbol: &&String| symbol.split('#').next() == Some(&format!("uid:{step}"));
        let index = self.uids.values().filter(of_step).count();
        let symbol = numbered("uid", step, index);
        self.uids.insert(uid.to_owned(), symbol.clone());
        symbol
    }

    /// Returns whether a step has shown this uid.
    pub fn knows_uid(&self, uid: &str) -> bool {
        self.uids.contains_key(uid)
    }

    /// Replaces every generated name in `text`.
    pub fn replace_generated(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, symbol) in &self.names {
            text = text.replace(name.as_str(), symbol);
        }
        text
    }

    /// Returns all symbols of versions in the order of the versions.
    pub fn order(&self) -> Vec<String> {
        self.versions.values().cloned().collect()
    }
}

fn numbered(what: &str, step: &str, index: usize) -> String {
    match index {
        0 => format!("{what}:{step}"),
        _ => format!("{what}:{step}#{}", index + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_keeps_the_name_of_the_step_that_showed_it_first() {
        let mut symbols = Symbols::default();
        symbols.learn_versions("create", vec![20]);
        symbols.learn_versions("list", vec![30, 20, 10]);
        assert_eq!(symbols.version(20), Some("rv:create"));
        assert_eq!(symbols.order(), ["rv:list", "rv:create", "rv:list#2"]);
        assert_eq!(symbols.version_of_list(25), "at least rv:create");
        assert_eq!(symbols.version_of_list(5), "<rv>");
    }

    #[test]
    fn equal_uids_have_equal_symbols() {
        let mut symbols = Symbols::default();
        let first = symbols.uid("a", "x");
        let second = symbols.uid("a", "y");
        assert_eq!((first.as_str(), second.as_str()), ("uid:a", "uid:a#2"));
        assert_eq!(symbols.uid("b", "x"), first);
    }
}

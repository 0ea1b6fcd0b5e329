//! Command lines as the real programs read them: Go's flags, from tables that `record-flags` made of
//! their `--help`. This module knows no flag's meaning.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The flags of one program.
pub struct FlagTable {
    /// The program's name.
    pub program: &'static str,
    /// A line for each flag: its name, and `bool` or `value`.
    pub lines: &'static str,
    /// How the program words mistakes.
    pub wording: Wording,
}

/// How a program words mistakes in its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wording {
    /// As the library pflag does, which the programs of Kubernetes use.
    Pflag,
    /// As Go's own library does, which etcd uses.
    Go,
}

/// The flags of one command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Flags {
    values: BTreeMap<&'static str, Vec<String>>,
}

/// A mistake in a command line, in the program's own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlagError(pub String);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Bool,
    Value,
}

impl FlagTable {
    fn rows(&self) -> impl Iterator<Item = (&'static str, Takes)> {
        self.lines.lines().filter_map(|line| {
            let (name, kind) = line.split_once(' ')?;
            let takes = match kind {
                "bool" => Takes::Bool,
                _ => Takes::Value,
            };
            Some((name, takes))
        })
    }

    /// Parses the arguments after the program's name.
    ///
    /// # Errors
    /// Returns the error of the real program for the first mistake.
    pub fn parse(&self, arguments: impl Iterator<Item = String>) -> Result<Flags, FlagError> {
        let rows: BTreeMap<&str, (&'static str, Takes)> =
            self.rows().map(|row| (row.0, row)).collect();
        let mut flags = Flags::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let Some(text) = Self::flag_text(&argument) else {
                return Err(self.no_arguments(&argument));
            };
            let (given, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            // Both spellings of the words in a name are one flag.
            let name = match self.wording {
                Wording::Pflag => given.replace('_', "-"),
                Wording::Go => given.to_owned(),
            };
            let name = if name == "h" { "help".to_owned() } else { name };
            let Some(&(name, takes)) = rows.get(name.as_str()) else {
                return Err(self.unknown(&argument, given));
            };
            let value = match (value, takes) {
                // A version may be given, and need not be.
                (None, _) if name == "version" => "true".to_owned(),
                (None, Takes::Bool) => "true".to_owned(),
                (Some(value), Takes::Bool) if name != "version" => match go_bool(&value) {
                    Some(parsed) => parsed.to_string(),
                    None => return Err(self.no_bool(name, &value)),
                },
                (Some(value), _) => value,
                (None, Takes::Value) => match arguments.next() {
                    Some(value) => value,
                    None => return Err(self.no_value(name)),
                },
            };
            flags.values.entry(name).or_default().push(value);
        }
        Ok(flags)
    }

    /// Returns the text of a flag behind its dashes; `None` for what is none.
    fn flag_text(argument: &str) -> Option<&str> {
        let text = argument
            .strip_prefix("--")
            .or_else(|| argument.strip_prefix('-'))?;
        (!text.is_empty()).then_some(text)
    }

    fn unknown(&self, argument: &str, name: &str) -> FlagError {
        FlagError(match self.wording {
            Wording::Pflag if argument.starts_with("--") => format!("unknown flag: --{name}"),
            Wording::Pflag => {
                let first = name.chars().next().unwrap_or_default();
                format!("unknown shorthand flag: {first:?} in -{name}")
            }
            Wording::Go => format!("flag provided but not defined: -{name}"),
        })
    }

    fn no_bool(&self, name: &str, value: &str) -> FlagError {
        FlagError(match self.wording {
            Wording::Pflag => format!(
                "invalid argument {value:?} for \"--{name}\" flag: strconv.ParseBool: parsing {value:?}: invalid syntax"
            ),
            Wording::Go => format!("invalid boolean value {value:?} for -{name}: parse error"),
        })
    }

    fn no_value(&self, name: &str) -> FlagError {
        FlagError(match self.wording {
            Wording::Pflag => format!("flag needs an argument: --{name}"),
            Wording::Go => format!("flag needs an argument: -{name}"),
        })
    }

    fn no_arguments(&self, argument: &str) -> FlagError {
        FlagError(match self.wording {
            Wording::Pflag => {
                let program = self.program;
                format!("{program:?} does not take any arguments, got [{argument:?}]")
            }
            Wording::Go => format!("'{argument}' is not a valid flag"),
        })
    }

    /// Returns the text of `--help`: each flag at the beginning of a line, and whether it has a meaning
    /// here.
    pub fn help(&self, head: &str, has_meaning: impl Fn(&str) -> bool) -> String {
        let mut text = format!("{head}\n\nUsage:\n  {} [flags]\n\nFlags:\n", self.program);
        for (name, takes) in self.rows() {
            let kind = match takes {
                Takes::Bool => "",
                Takes::Value => " value",
            };
            let note = match has_meaning(name) {
                true => "",
                false => "accepted, without effect here",
            };
            let flag = format!("--{name}{kind}");
            let line = format!("      {flag:52} {note}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }
}

impl Flags {
    /// Returns the names of the flags that were given.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    /// Returns the values of all flags that were given, those of one flag separated by commas.
    pub fn given(&self) -> BTreeMap<String, String> {
        let values = self.values.iter();
        values
            .map(|(name, values)| ((*name).to_owned(), values.join(",")))
            .collect()
    }

    /// Returns the last value of a flag; `None` if it was not given.
    pub fn last(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.last().map(String::as_str)
    }

    /// Returns the last value of a flag that is not empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.last(name).filter(|text| !text.is_empty())
    }

    /// Returns the value of a flag that is on or off.
    pub fn switch(&self, name: &str, default: bool) -> bool {
        self.last(name).map_or(default, |text| text == "true")
    }

    /// Returns all values of a flag that may be given several times.
    pub fn all(&self, name: &str) -> &[String] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the items of a flag whose values are lists.
    pub fn list(&self, name: &str) -> Vec<String> {
        let items = self.all(name).iter().flat_map(|text| text.split(','));
        let items = items.map(str::trim).filter(|item| !item.is_empty());
        items.map(str::to_owned).collect()
    }
}

/// Reads a boolean as Go does.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envtest::{etcd, kube_apiserver};

    fn parse(table: &FlagTable, line: &str) -> Result<Flags, String> {
        let arguments = line.split_whitespace().map(str::to_owned);
        table.parse(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn command_lines_are_read_as_the_real_programs_read_them() {
        let table = &kube_apiserver::FLAGS;
        let line = "--secure-port 6443 --allow-privileged --etcd_servers=http://a,http://b \
                    --etcd-servers=http://c -v 4 --authorization-mode= --anonymous-auth=F --v=2";
        let flags = parse(table, line).expect("a command line");
        assert_eq!(flags.last("secure-port"), Some("6443"));
        assert!(flags.switch("allow-privileged", false) && !flags.switch("anonymous-auth", true));
        assert_eq!(
            flags.list("etcd-servers"),
            ["http://a", "http://b", "http://c"]
        );
        assert_eq!(flags.last("v"), Some("2"));
        assert_eq!(
            (
                flags.last("authorization-mode"),
                flags.text("authorization-mode")
            ),
            (Some(""), None)
        );
        assert_eq!(
            parse(table, "--version").expect("a flag").last("version"),
            Some("true")
        );
        let etcd = parse(&etcd::FLAGS, "-data-dir /d --unsafe-no-fsync=true").expect("flags");
        assert_eq!(etcd.last("data-dir"), Some("/d"));
    }

    #[test]
    fn mistakes_are_refused_in_the_words_of_the_real_programs() {
        for (line, text) in [
            ("--nope=1", "unknown flag: --nope"),
            ("--insecure-port=8080", "unknown flag: --insecure-port"),
            ("-x", "unknown shorthand flag: 'x' in -x"),
            ("--secure-port", "flag needs an argument: --secure-port"),
            (
                "word",
                "\"kube-apiserver\" does not take any arguments, got [\"word\"]",
            ),
            (
                "--allow-privileged=ja",
                "invalid argument \"ja\" for \"--allow-privileged\" flag: strconv.ParseBool: parsing \"ja\": invalid syntax",
            ),
        ] {
            assert_eq!(
                parse(&kube_apiserver::FLAGS, line),
                Err(text.to_owned()),
                "{line}"
            );
        }
        let unknown = parse(&etcd::FLAGS, "--nope");
        assert_eq!(
            unknown,
            Err("flag provided but not defined: -nope".to_owned())
        );
    }

    /// controller-runtime looks for flags in this way.
    #[test]
    fn help_has_each_flag_at_the_beginning_of_a_line() {
        let shown = |table: &FlagTable, flag: &str| {
            let help = table.help("", |_| true);
            help.lines()
                .any(|line| line.trim_start().split([' ', '=']).next() == Some(flag))
        };
        assert!(shown(&etcd::FLAGS, "--unsafe-no-fsync"));
        assert!(shown(&kube_apiserver::FLAGS, "--secure-port"));
        assert!(!shown(&kube_apiserver::FLAGS, "--insecure-port"));
    }
}

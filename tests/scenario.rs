//! The scenario format: a readable text file of HTTP requests.
//!
//! ```text
//! # What the scenario shows.
//! @let cms = /api/v1/namespaces/{{ns}}/configmaps
//!
//! ### create
//! POST {{cms}}
//! @capture rv = /metadata/resourceVersion
//! Content-Type: application/json
//!
//! {"metadata": {"name": "a"}}
//!
//! ### watch
//! GET {{cms}}?watch=1&resourceVersion={{rv}}
//! @watch changes 2
//! ```
//!
//! `###` begins a step and names it. Then follow the request line, directives (`@`) and headers,
//! and after an empty line the body. tests/README.md lists the directives. This module owns parsing
//! and the filling of `{{…}}`; it does not know how a step is sent.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

/// A parsed scenario file.
#[derive(Debug)]
pub struct Scenario {
    /// The file's name without its ending; also the namespace in which the scenario runs.
    pub name: String,
    /// Whether the runner creates a namespace for the scenario.
    pub namespace: Namespace,
    /// The flags of the reference's API server that the scenario needs beyond the usual ones.
    pub reference_flags: Vec<String>,
    /// `@let` definitions in order.
    pub lets: Vec<(String, String)>,
    /// The steps in order; cleanup steps are last.
    pub steps: Vec<Step>,
}

/// Whether a scenario needs a namespace of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// The runner creates one and removes it.
    Own,
    /// The scenario uses no namespace, or creates its own.
    None,
}

/// One request, and which parts of its answer are kept.
#[derive(Debug)]
pub struct Step {
    /// The step's name, unique within the scenario.
    pub name: String,
    /// The action of the step.
    pub action: Action,
    /// The captured values: variable and JSON pointer.
    pub captures: Vec<(String, String)>,
    /// The recorded part of the answer.
    pub record: Record,
    /// Names of headers that are not recorded.
    pub without_headers: Vec<String>,
}

/// The action of a step.
#[derive(Debug)]
pub enum Action {
    /// Sends one request and reads the answer.
    Send(Template),
    /// Sends the request until the answer meets the condition, and records the last answer.
    Until(Template, Condition),
    /// Opens a watch that runs beside the following steps.
    Watch(Template, Watch),
    /// Collects the events of a watch that an earlier step opened.
    Join(String, Removals),
}

/// A request in which `{{…}}` is not yet filled.
#[derive(Debug)]
pub struct Template {
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in order.
    pub headers: Vec<(String, String)>,
    /// The body; empty for none.
    pub body: String,
    /// The credentials with which the request is sent.
    pub caller: crate::kubeconfig::Caller,
}

/// A watch's name and its end.
#[derive(Debug, Clone)]
pub struct Watch {
    /// The name that `@join` uses.
    pub name: String,
    /// The end of the watch.
    pub end: WatchEnd,
}

/// The point at which a watch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// After this number of events.
    Events(usize),
    /// When the server ends the stream.
    Closed,
}

/// How the events of a watch record the removal of an object that waits for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removals {
    /// As the events that came.
    AsSent,
    /// As one event: the event before it, which marks the object as deleted without a grace period,
    /// is left out, and so is the mark in the last event.
    OneEvent,
}

/// The condition of an `@until`.
#[derive(Debug)]
pub enum Condition {
    /// A status code.
    Status(u16),
    /// A JSON pointer has this value (text is compared without quotes).
    Equals(String, String),
    /// A JSON pointer exists.
    Exists(String),
}

/// The recorded part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    /// Status, headers and the parsed body.
    Full,
    /// Status, headers and the body as text, so that the order of fields, spaces and line ends
    /// count.
    Raw,
    /// Status and headers.
    Head,
    /// Only the values at these pointers.
    Keep(Vec<String>),
    /// Only the sorted field names of the objects at these pointers.
    Keys(Vec<String>),
    /// Nothing: the step only prepares or cleans up.
    Nothing,
    /// Nothing, and the step runs at the end whatever happened before.
    Cleanup,
}

impl Scenario {
    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// Returns an error that names the step if a line cannot be parsed.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut scenario = Self {
            name: name.to_owned(),
            namespace: Namespace::Own,
            reference_flags: Vec::new(),
            lets: Vec::new(),
            steps: Vec::new(),
        };
        let mut parts = split_steps(text);
        scenario.head(parts.remove(0))?;
        let mut names = BTreeSet::new();
        let mut cleanup = Vec::new();
        for part in parts {
            let step_name = part.lines().next().unwrap_or_default().trim().to_owned();
            let step = step(&step_name, part).with_context(|| format!("step {step_name:?}"))?;
            ensure!(
                names.insert(step_name.clone()),
                "two steps are called {step_name:?}"
            );
            match step.record {
                Record::Cleanup => cleanup.push(step),
                _ => scenario.steps.push(step),
            }
        }
        ensure!(!scenario.steps.is_empty(), "no steps");
        scenario.join_the_rest();
        scenario.steps.append(&mut cleanup);
        Ok(scenario)
    }

    fn head(&mut self, text: &str) -> Result<()> {
        for line in text.lines().map(str::trim) {
            match line.split_once(' ') {
                _ if line.is_empty() || line.starts_with('#') => {}
                Some(("@let", rest)) => {
                    let (name, value) = rest.split_once('=').context("@let name = value")?;
                    self.lets
                        .push((name.trim().to_owned(), value.trim().to_owned()));
                }
                Some(("@namespace", "none")) => self.namespace = Namespace::None,
                Some(("@reference", flags)) => {
                    let flags = flags.split_whitespace().map(str::to_owned);
                    self.reference_flags.extend(flags);
                }
                _ => bail!("cannot understand {line:?}"),
            }
        }
        Ok(())
    }

    /// Adds a join after the last step for each watch that no step joins.
    fn join_the_rest(&mut self) {
        let joined: BTreeSet<String> = self
            .steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Join(name, _) => Some(name.clone()),
                _ => None,
            })
            .collect();
        let open: Vec<String> = self
            .steps
            .iter()
            .filter_map(|step| match &step.action {
                Action::Watch(_, watch) => Some(watch.name.clone()),
                _ => None,
            })
            .filter(|name| !joined.contains(name))
            .collect();
        self.steps.extend(open.into_iter().map(|name| Step {
            name: format!("events of {name}"),
            action: Action::Join(name, Removals::AsSent),
            captures: Vec::new(),
            record: Record::Full,
            without_headers: Vec::new(),
        }));
    }
}

impl Step {
    /// Returns the request as one line, before anything is filled in.
    pub fn title(&self) -> String {
        match &self.action {
            Action::Send(ask) | Action::Until(ask, _) | Action::Watch(ask, _) => {
                format!("{} {}", ask.method, ask.path)
            }
            Action::Join(name, _) => format!("join {name}"),
        }
    }
}

/// Splits the text before every line that begins with `### `, and removes these marks.
fn split_steps(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with("### ") {
            parts.push(&text[start..offset]);
            start = offset + 4;
        }
        offset += line.len();
    }
    parts.push(&text[start..]);
    parts
}

fn step(name: &str, part: &str) -> Result<Step> {
    let (head, body) = match part.split_once("\n\n") {
        Some((head, body)) => (head, body.trim_end()),
        None => (part, ""),
    };
    let mut draft = Draft::default();
    for line in head.lines().skip(1) {
        draft.line(line.trim_end())?;
    }
    let (method, path) = match draft.request.take() {
        Some(line) => {
            let (method, path) = line.split_once(' ').context("METHOD path")?;
            (method.to_owned(), path.trim().to_owned())
        }
        None => (String::new(), String::new()),
    };
    let headers = draft.headers(body);
    let caller = draft.caller;
    let template = Template {
        method,
        path,
        headers,
        body: body.to_owned(),
        caller,
    };
    let action = match (draft.join, draft.watch, draft.until) {
        (Some(name), None, None) if template.method.is_empty() => {
            Action::Join(name, draft.removals)
        }
        (None, watch, until) if !template.method.is_empty() => match (watch, until) {
            (Some(watch), None) => Action::Watch(template, watch),
            (None, Some(condition)) => Action::Until(template, condition),
            (None, None) => Action::Send(template),
            (Some(_), Some(_)) => bail!("@watch and @until exclude each other"),
        },
        _ => bail!("a step is a request or a @join"),
    };
    Ok(Step {
        name: name.to_owned(),
        action,
        captures: draft.captures,
        record: draft.record,
        without_headers: draft.without_headers,
    })
}

/// A step while its lines are read.
struct Draft {
    request: Option<String>,
    headers: Vec<(String, String)>,
    captures: Vec<(String, String)>,
    watch: Option<Watch>,
    join: Option<String>,
    removals: Removals,
    until: Option<Condition>,
    record: Record,
    without_headers: Vec<String>,
    caller: crate::kubeconfig::Caller,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            request: None,
            headers: Vec::new(),
            captures: Vec::new(),
            watch: None,
            join: None,
            removals: Removals::AsSent,
            until: None,
            record: Record::Full,
            without_headers: Vec::new(),
            caller: crate::kubeconfig::Caller::Admin,
        }
    }
}

impl Draft {
    fn line(&mut self, line: &str) -> Result<()> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if let Some(directive) = line.strip_prefix('@') {
            let (word, rest) = directive.split_once(' ').unwrap_or((directive, ""));
            return self.directive(word, rest.trim());
        }
        if self.request.is_none() && self.join.is_none() {
            self.request = Some(line.to_owned());
            return Ok(());
        }
        let (name, value) = line.split_once(':').context("Header: value")?;
        self.headers
            .push((name.trim().to_lowercase(), value.trim().to_owned()));
        Ok(())
    }

    fn directive(&mut self, word: &str, rest: &str) -> Result<()> {
        let pointers = || {
            rest.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        match word {
            "capture" => {
                let (name, pointer) = rest.split_once('=').context("@capture name = /pointer")?;
                self.captures
                    .push((name.trim().to_owned(), pointer.trim().to_owned()));
            }
            "watch" => {
                let (name, end) = rest.split_once(' ').context("@watch name N|closed")?;
                let end = match end {
                    "closed" => WatchEnd::Closed,
                    count => WatchEnd::Events(count.parse().context("@watch name N|closed")?),
                };
                self.watch = Some(Watch {
                    name: name.to_owned(),
                    end,
                });
            }
            "join" => self.join = Some(rest.to_owned()),
            "one-removal" => self.removals = Removals::OneEvent,
            "without" => self.without_headers = pointers(),
            "until" => self.until = Some(condition(rest)?),
            "anonymous" => self.caller = crate::kubeconfig::Caller::Anonymous,
            "raw" => self.record = Record::Raw,
            "head" => self.record = Record::Head,
            "keep" => self.record = Record::Keep(pointers()),
            "keys" => self.record = Record::Keys(pointers()),
            "unrecorded" => self.record = Record::Nothing,
            "cleanup" => self.record = Record::Cleanup,
            _ => bail!("no directive is called @{word}"),
        }
        Ok(())
    }

    /// Returns the headers. A body without a content type is JSON; `Content-Type: none` sends no
    /// such header.
    fn headers(&mut self, body: &str) -> Vec<(String, String)> {
        let mut headers = std::mem::take(&mut self.headers);
        let named = headers.iter().any(|(name, _)| name == "content-type");
        if !body.is_empty() && !named {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
        }
        headers.retain(|(name, value)| name != "content-type" || value != "none");
        headers
    }
}

fn condition(text: &str) -> Result<Condition> {
    if let Some(code) = text.strip_prefix("status ") {
        return Ok(Condition::Status(
            code.trim().parse().context("a status code")?,
        ));
    }
    match text.split_once('=') {
        Some((pointer, value)) => Ok(Condition::Equals(
            pointer.trim().to_owned(),
            value.trim().to_owned(),
        )),
        None => Ok(Condition::Exists(text.to_owned())),
    }
}

/// Values for `{{name}}`.
#[derive(Debug, Default)]
pub struct Variables {
    values: BTreeMap<String, String>,
    captured: BTreeSet<String>,
}

impl Variables {
    /// Returns the variables that every scenario has.
    pub fn for_scenario(scenario: &Scenario) -> Result<Self> {
        let mut variables = Self::default();
        let meta = "v=v1;g=meta.k8s.io";
        variables.set("ns", &scenario.name);
        variables.set("table", &format!("application/json;as=Table;{meta}"));
        variables.set(
            "partial",
            &format!("application/json;as=PartialObjectMetadata;{meta}"),
        );
        let list = format!("application/json;as=PartialObjectMetadataList;{meta}");
        variables.set("partials", &list);
        let found = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        variables.set("aggregated", found);
        for (name, value) in &scenario.lets {
            let value = variables.fill(value)?;
            variables.set(name, &value);
        }
        Ok(variables)
    }

    /// Sets or replaces one value.
    pub fn set(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.to_owned());
    }

    /// Sets a value that an answer contained.
    pub fn capture(&mut self, name: &str, value: &str) {
        self.set(name, value);
        self.captured.insert(name.to_owned());
    }

    /// Fills a text with the scenario's own values only; captured values are left empty.
    ///
    /// # Errors
    /// Returns an error if a name has no value.
    pub fn fill_as_given(&self, text: &str) -> Result<String> {
        let empty = |name: &String| (name.clone(), String::new());
        let mut values = self.values.clone();
        values.extend(self.captured.iter().map(empty));
        let given = Self {
            values,
            captured: BTreeSet::new(),
        };
        given.fill(text)
    }

    /// Fills every `{{name}}` and `{{repeat N text}}`.
    ///
    /// # Errors
    /// Returns an error if a name has no value.
    pub fn fill(&self, text: &str) -> Result<String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("{{") {
            filled.push_str(&rest[..at]);
            rest = &rest[at + 2..];
            if let Some(repeated) = rest.strip_prefix("repeat ") {
                rest = repeat(repeated, &mut filled)?;
                continue;
            }
            let end = rest.find("}}").context("{{ without }}")?;
            let name = rest[..end].trim();
            filled.push_str(
                self.values
                    .get(name)
                    .with_context(|| format!("no value for {name:?}"))?,
            );
            rest = &rest[end + 2..];
        }
        filled.push_str(rest);
        Ok(filled)
    }
}

/// Parses `N 'text'}}`, appends the repetition and returns the rest of the text.
fn repeat<'a>(text: &'a str, filled: &mut String) -> Result<&'a str> {
    let (count, rest) = text.split_once(" '").context("{{repeat N 'text'}}")?;
    let (piece, rest) = rest.split_once("'}}").context("{{repeat N 'text'}}")?;
    filled.push_str(&piece.repeat(count.trim().parse().context("a count")?));
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# About\n@let a = /x/{{ns}}\n\n### one\nPOST {{a}}\n@capture rv = /metadata/resourceVersion\n\n{\"a\": 1}\n\n### two\nGET {{a}}?watch=1\n@watch w 2\n\n### gone\nDELETE {{a}}\n@cleanup\n";

    #[test]
    fn steps_have_requests_directives_and_bodies() {
        let scenario = Scenario::parse("s", TEXT).expect("parses");
        let titles: Vec<_> = scenario.steps.iter().map(Step::title).collect();
        assert_eq!(
            titles,
            ["POST {{a}}", "GET {{a}}?watch=1", "join w", "DELETE {{a}}"]
        );
        let Action::Send(ask) = &scenario.steps[0].action else {
            panic!("the first step sends");
        };
        assert_eq!(ask.body, "{\"a\": 1}");
        assert_eq!(
            ask.headers,
            [("content-type".into(), "application/json".into())]
        );
        assert_eq!(scenario.steps[0].captures[0].1, "/metadata/resourceVersion");
    }

    #[test]
    fn variables_and_repetitions_are_filled() {
        let scenario = Scenario::parse("s", TEXT).expect("parses");
        let variables = Variables::for_scenario(&scenario).expect("filled");
        assert_eq!(
            variables.fill("{{a}}/{{repeat 3 '}'}}!").expect("filled"),
            "/x/s/}}}!"
        );
        assert!(variables.fill("{{nothing}}").is_err());
    }

    #[test]
    fn a_step_is_refused_where_it_says_nothing_or_too_much() {
        for bad in [
            "### a\n@watch w 1\n",
            "### a\nGET /\n@nonsense\n",
            "### a\nGET /\n\n### a\nGET /\n",
            "nonsense\n### a\nGET /\n",
            "",
        ] {
            assert!(Scenario::parse("s", bad).is_err(), "{bad:?}");
        }
    }
}

//! The request parameters: for each one its name, how its text is parsed, which operations document
//! it, and what happens to it when a watch is forwarded.
//!
//! All code that needs a parameter, in this crate or in the server, reads it through its row, so
//! that one text is never parsed in two ways. If a parameter occurs more than once, the first value
//! counts, unless its row says otherwise. A parameter without a row is ignored, as upstream ignores
//! it.

use polyplane_apimachinery::status::ApiError;
use polyplane_apimachinery::strconv;

/// The decoded pairs of a query, in the order of the request.
pub type Query = [(String, String)];

/// The row of one parameter.
#[derive(Debug)]
pub struct Row {
    /// The name as clients write it.
    pub name: &'static str,
    /// The way in which the text is parsed.
    pub form: Form,
    /// The operations whose documents list the parameter. Empty if upstream reads it without
    /// documenting it, or if the documents take it from the schema of an options object.
    pub listed: &'static [OptionSet],
    /// The treatment of the parameter when a watch is forwarded.
    pub hop: Hop,
}

/// The way in which the text of a parameter is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A boolean of an options object: false for `0` and for `false` in any case, true for every
    /// other text, the empty one included.
    Flag,
    /// The boolean `pretty`, which upstream reads apart from all options: Go's `ParseBool`, where
    /// an empty text counts as absent and an unreadable one as false.
    Pretty,
    /// A signed decimal number of 64 bits.
    Integer,
    /// The text itself; an empty text counts as absent.
    Text,
    /// The texts of all values.
    Texts,
}

impl Form {
    /// Returns the type that OpenAPI names for it.
    pub const fn documented(self) -> &'static str {
        match self {
            Self::Flag => "boolean",
            Self::Integer => "integer",
            Self::Pretty | Self::Text | Self::Texts => "string",
        }
    }
}

/// Operations that share a set of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionSet {
    /// All operations.
    Every,
    /// List and watch.
    List,
    /// Create and update.
    Write,
    /// Patch.
    Patch,
    /// Delete of one object.
    Delete,
    /// Delete of a collection.
    DeleteCollection,
}

impl OptionSet {
    /// Returns the rows that the documents of these operations list, by name.
    pub fn rows(self) -> impl Iterator<Item = &'static Row> {
        let all = ROWS.iter().copied();
        all.filter(move |row| row.listed.contains(&self))
    }
}

/// The treatment of a parameter when a watch continues at another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// It is forwarded as the client wrote it.
    AsSent,
    /// It determines how a watch begins, so it is not forwarded for the rest of a watch.
    BeginningOnly,
    /// A peer always gets this text, whatever the client wrote.
    Always(&'static str),
    /// The rest of a watch names the version up to which the client has the events.
    Position,
    /// The rest of a watch gets the time that is left.
    TimeLeft,
}

/// The row of a boolean.
#[derive(Debug)]
pub struct Flag(Row);

/// The row of a number.
#[derive(Debug)]
pub struct Integer(Row);

/// The row of a text.
#[derive(Debug)]
pub struct Text(Row);

/// The row of a parameter that may have several values, all of which count.
#[derive(Debug)]
pub struct Texts(Row);

impl Flag {
    /// Returns the first value; `None` if there is none.
    pub fn read(&self, query: &Query) -> Option<bool> {
        let text = first(query, self.0.name)?;
        match self.0.form {
            Form::Pretty if text.is_empty() => None,
            Form::Pretty => Some(matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")),
            _ => Some(!(text == "0" || text.eq_ignore_ascii_case("false"))),
        }
    }

    /// Returns the parameter's row.
    pub const fn row(&self) -> &Row {
        &self.0
    }
}

impl Integer {
    /// Returns the first value; `None` if there is none.
    ///
    /// # Errors
    /// Returns 400 with Go's text if it is not a number of 64 bits.
    pub fn read(&self, query: &Query) -> Result<Option<i64>, ApiError> {
        let Some(text) = first(query, self.0.name) else {
            return Ok(None);
        };
        let number = strconv::parse_int(text).map(Some);
        number.map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// Returns the parameter's row.
    pub const fn row(&self) -> &Row {
        &self.0
    }
}

impl Text {
    /// Returns the first value; empty if there is none.
    pub fn read<'q>(&self, query: &'q Query) -> &'q str {
        self.given(query).unwrap_or("")
    }

    /// Returns the first value; `None` if there is none.
    pub fn given<'q>(&self, query: &'q Query) -> Option<&'q str> {
        first(query, self.0.name)
    }

    /// Returns the parameter's row.
    pub const fn row(&self) -> &Row {
        &self.0
    }
}

impl Texts {
    /// Returns all values in the order of the request.
    pub fn read<'q>(&self, query: &'q Query) -> impl Iterator<Item = &'q str> {
        let name = self.0.name;
        let found = query.iter().filter(move |(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the parameter's row.
    pub const fn row(&self) -> &Row {
        &self.0
    }
}

fn first<'q>(query: &'q Query, name: &str) -> Option<&'q str> {
    let found = query.iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}

/// The longest duration that Go can hold, in seconds: 292 years. Upstream's arithmetic overflows
/// beyond it; here a longer time is treated as this one.
pub const DURATION_SECONDS_MAX: i64 = i64::MAX / 1_000_000_000;

const fn row(name: &'static str, form: Form, listed: &'static [OptionSet]) -> Row {
    Row {
        name,
        form,
        listed,
        hop: Hop::AsSent,
    }
}

const fn on_hop(hop: Hop, row: Row) -> Row {
    Row { hop, ..row }
}

const LIST: &[OptionSet] = &[OptionSet::List];
const LISTS: &[OptionSet] = &[OptionSet::List, OptionSet::DeleteCollection];
const DELETES: &[OptionSet] = &[OptionSet::Delete, OptionSet::DeleteCollection];
const WRITES: &[OptionSet] = &[OptionSet::Write, OptionSet::Patch];
const CHANGES: &[OptionSet] = &[
    OptionSet::Write,
    OptionSet::Patch,
    OptionSet::Delete,
    OptionSet::DeleteCollection,
];

/// True if the client wants bookmarks. A peer is always requested to send them; those that the
/// client does not want are hidden from it.
pub static ALLOW_WATCH_BOOKMARKS: Flag = Flag(on_hop(
    Hop::Always("true"),
    row("allowWatchBookmarks", Form::Flag, LIST),
));
/// The container of a pod's log or stream, documented with those options.
pub static CONTAINER: Text = Text(row("container", Form::Text, &[]));
/// The token of the next page.
pub static CONTINUE: Text = Text(row("continue", Form::Text, LISTS));
/// The value `All` means that the write is not stored.
pub static DRY_RUN: Texts = Texts(row("dryRun", Form::Texts, CHANGES));
/// Whether the object is to be without what the cluster has added: gone from upstream, which refuses it.
pub static EXPORT: Flag = Flag(row("export", Form::Flag, &[]));
/// The name of the writer, as the client gives it.
pub static FIELD_MANAGER: Text = Text(row("fieldManager", Form::Text, WRITES));
/// The values of fields that objects must have.
pub static FIELD_SELECTOR: Text = Text(row("fieldSelector", Form::Text, LISTS));
/// The treatment of unknown fields.
pub static FIELD_VALIDATION: Text = Text(row("fieldValidation", Form::Text, WRITES));
/// True if a server-side apply takes over fields of other owners.
pub static FORCE: Flag = Flag(row("force", Form::Flag, &[OptionSet::Patch]));
/// The time that a deletion waits, in seconds.
pub static GRACE_PERIOD_SECONDS: Integer =
    Integer(row("gracePeriodSeconds", Form::Integer, DELETES));
/// True to delete only an object that cannot be read.
pub static IGNORE_STORE_READ_ERROR: Flag = Flag(row(
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    Form::Flag,
    DELETES,
));
/// The part of its object that a row of a table includes. Upstream does not document it.
pub static INCLUDE_OBJECT: Text = Text(row("includeObject", Form::Text, &[]));
/// The labels that objects must have.
pub static LABEL_SELECTOR: Text = Text(row("labelSelector", Form::Text, LISTS));
/// Most items of a page.
pub static LIMIT: Integer = Integer(row("limit", Form::Integer, LISTS));
/// The older form of [`PROPAGATION_POLICY`].
pub static ORPHAN_DEPENDENTS: Flag = Flag(row("orphanDependents", Form::Flag, DELETES));
/// True if a person reads the answer.
pub static PRETTY: Flag = Flag(row("pretty", Form::Pretty, &[OptionSet::Every]));
/// The treatment of dependents.
pub static PROPAGATION_POLICY: Text = Text(row("propagationPolicy", Form::Text, DELETES));
/// The version that a read starts from.
pub static RESOURCE_VERSION: Text = Text(on_hop(
    Hop::Position,
    row("resourceVersion", Form::Text, LISTS),
));
/// The way in which that version is used.
pub static RESOURCE_VERSION_MATCH: Text = Text(on_hop(
    Hop::BeginningOnly,
    row("resourceVersionMatch", Form::Text, LISTS),
));
/// True if a watch begins with the present objects.
pub static SEND_INITIAL_EVENTS: Flag = Flag(on_hop(
    Hop::BeginningOnly,
    row("sendInitialEvents", Form::Flag, LISTS),
));
/// The part of a sharded list. Documented and ignored, because it belongs to an alpha feature that
/// is off.
pub static SHARD_SELECTOR: Text = Text(row("shardSelector", Form::Text, LISTS));
/// The time that the client waits for an answer, as a Go duration. Upstream does not document it. A
/// peer also gets the time that is left of it, beside the request.
pub static TIMEOUT: Text = Text(row("timeout", Form::Text, &[]));
/// The duration of a watch, in seconds.
pub static TIMEOUT_SECONDS: Integer = Integer(on_hop(
    Hop::TimeLeft,
    row("timeoutSeconds", Form::Integer, LISTS),
));
/// True to turn a list into a watch. Upstream reads it twice by the same rule: once to name the
/// verb, and once with the other options of a list.
pub static WATCH: Flag = Flag(row("watch", Form::Flag, LIST));

// The options of logs and streams, which are documented with these.

/// The command to run in a container, and its arguments.
pub static COMMAND: Texts = Texts(row("command", Form::Texts, &[]));
/// True to follow a log.
pub static FOLLOW: Flag = Flag(row("follow", Form::Flag, &[]));
/// True to read a log from a kubelet whose certificate is not verified.
pub static INSECURE_SKIP_TLS_VERIFY_BACKEND: Flag =
    Flag(row("insecureSkipTLSVerifyBackend", Form::Flag, &[]));
/// Most bytes of a log.
pub static LIMIT_BYTES: Integer = Integer(row("limitBytes", Form::Integer, &[]));
/// The ports to forward.
pub static PORTS: Texts = Texts(row("ports", Form::Texts, &[]));
/// True for the log of a container's previous run.
pub static PREVIOUS: Flag = Flag(row("previous", Form::Flag, &[]));
/// Seconds before now from which a log begins.
pub static SINCE_SECONDS: Integer = Integer(row("sinceSeconds", Form::Integer, &[]));
/// The time from which a log begins.
pub static SINCE_TIME: Text = Text(row("sinceTime", Form::Text, &[]));
/// True to stream the standard error of a container.
pub static STDERR: Flag = Flag(row("stderr", Form::Flag, &[]));
/// True to stream the standard input of a container.
pub static STDIN: Flag = Flag(row("stdin", Form::Flag, &[]));
/// True to stream the standard output of a container.
pub static STDOUT: Flag = Flag(row("stdout", Form::Flag, &[]));
/// The stream of a container of which a log is read. Upstream knows it only with a feature that is off.
pub static STREAM: Text = Text(row("stream", Form::Text, &[]));
/// Lines from the end of a log.
pub static TAIL_LINES: Integer = Integer(row("tailLines", Form::Integer, &[]));
/// True for a time before each line of a log.
pub static TIMESTAMPS: Flag = Flag(row("timestamps", Form::Flag, &[]));
/// True if the streams are those of a terminal.
pub static TTY: Flag = Flag(row("tty", Form::Flag, &[]));
/// The uid that an object must have to be deleted. Upstream does not document it.
pub static UID: Text = Text(row("uid", Form::Text, &[]));

/// All rows by name.
pub static ROWS: &[&Row] = &[
    &ALLOW_WATCH_BOOKMARKS.0,
    &COMMAND.0,
    &CONTAINER.0,
    &CONTINUE.0,
    &DRY_RUN.0,
    &EXPORT.0,
    &FIELD_MANAGER.0,
    &FIELD_SELECTOR.0,
    &FIELD_VALIDATION.0,
    &FOLLOW.0,
    &FORCE.0,
    &GRACE_PERIOD_SECONDS.0,
    &IGNORE_STORE_READ_ERROR.0,
    &INCLUDE_OBJECT.0,
    &INSECURE_SKIP_TLS_VERIFY_BACKEND.0,
    &LABEL_SELECTOR.0,
    &LIMIT.0,
    &LIMIT_BYTES.0,
    &ORPHAN_DEPENDENTS.0,
    &PORTS.0,
    &PRETTY.0,
    &PREVIOUS.0,
    &PROPAGATION_POLICY.0,
    &RESOURCE_VERSION.0,
    &RESOURCE_VERSION_MATCH.0,
    &SEND_INITIAL_EVENTS.0,
    &SHARD_SELECTOR.0,
    &SINCE_SECONDS.0,
    &SINCE_TIME.0,
    &STDERR.0,
    &STDIN.0,
    &STDOUT.0,
    &STREAM.0,
    &TAIL_LINES.0,
    &TIMEOUT.0,
    &TIMEOUT_SECONDS.0,
    &TIMESTAMPS.0,
    &TTY.0,
    &UID.0,
    &WATCH.0,
];

/// Returns the row with a name.
pub fn named(name: &str) -> Option<&'static Row> {
    let at = ROWS.binary_search_by_key(&name, |row| row.name).ok()?;
    ROWS.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn rows_are_found_by_name() {
        assert!(ROWS.is_sorted_by_key(|row| row.name));
        for row in ROWS {
            assert!(named(row.name).is_some_and(|found| std::ptr::eq(found, *row)));
        }
        assert!(named("nothing").is_none());
    }

    /// Booleans are parsed by one of upstream's two rules, and the test lists the rows that use the
    /// second one.
    #[test]
    fn booleans_are_read_as_upstream_reads_them() {
        let cases = [
            ("", true, None),
            ("0", false, Some(false)),
            ("1", true, Some(true)),
            ("2", true, Some(false)),
            ("00", true, Some(false)),
            ("true", true, Some(true)),
            ("TRUE", true, Some(true)),
            ("tRuE", true, Some(false)),
            ("t", true, Some(true)),
            ("f", true, Some(false)),
            ("false", false, Some(false)),
            ("FaLsE", false, Some(false)),
            ("yes", true, Some(false)),
            ("no", true, Some(false)),
            (" false", true, Some(false)),
        ];
        for (text, converted, pretty) in cases {
            for flag in [
                &ALLOW_WATCH_BOOKMARKS,
                &FORCE,
                &IGNORE_STORE_READ_ERROR,
                &ORPHAN_DEPENDENTS,
                &SEND_INITIAL_EVENTS,
                &WATCH,
            ] {
                let read = flag.read(&query(flag.row().name, text));
                assert_eq!(read, Some(converted), "{} {text:?}", flag.row().name);
                assert_eq!(flag.read(&[]), None);
            }
            assert_eq!(PRETTY.read(&query("pretty", text)), pretty, "{text:?}");
        }
    }

    #[test]
    fn numbers_are_read_as_upstream_reads_them() {
        let of = |text: &str| {
            LIMIT
                .read(&query("limit", text))
                .map_err(|error| error.message)
        };
        assert_eq!(of("+5"), Ok(Some(5)));
        assert_eq!(of("-9223372036854775808"), Ok(Some(i64::MIN)));
        let wrong = [
            ("", r#"parsing "": invalid syntax"#),
            ("1_0", r#"parsing "1_0": invalid syntax"#),
            ("\u{1}", r#"parsing "\x01": invalid syntax"#),
            (
                "9223372036854775808",
                r#"parsing "9223372036854775808": value out of range"#,
            ),
        ];
        for (text, why) in wrong {
            assert_eq!(of(text), Err(format!("strconv.ParseInt: {why}")));
        }
    }
}

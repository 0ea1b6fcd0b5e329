//! The one-line text of an event that logs had before JSON: a part of what the event says.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::SystemTime;

use polyplane_apimachinery::Str;
use polyplane_apimachinery::quote::quote;
use polyplane_auth::UserInfo;

use crate::event::{Event, Head, Stage, stamp};

/// What the head of a request tells, in three pieces.
#[derive(Debug)]
pub(crate) struct LegacyHead {
    /// Up to the stage.
    id: String,
    /// From the address to the user's groups.
    user: String,
    /// From the user agent to the code.
    uri: String,
}

impl LegacyHead {
    pub(crate) fn new(head: &Head<'_>) -> Self {
        let address = head.sources.iter().next().map(IpAddr::to_string);
        let address = address.as_deref().unwrap_or("<unknown>");
        let (name, groups) = match head.user.name.is_empty() {
            true => ("<none>", "<none>".to_owned()),
            false => (&*head.user.name, groups_of(head.user, "<none>")),
        };
        let namespace = head.object.map_or("", |object| object.namespace);
        let namespace = if namespace.is_empty() {
            "<none>"
        } else {
            namespace
        };
        Self {
            id: format!("{} AUDIT: id={}", nano(head.received), quote(head.audit_id)),
            user: format!(
                " ip={} method={} user={} groups={}",
                quote(address),
                quote(head.verb),
                quote(name),
                quote(&groups),
            ),
            uri: format!(
                " user-agent={} namespace={} uri={}",
                quote(head.user_agent),
                quote(namespace),
                quote(head.uri),
            ),
        }
    }

    /// Returns the line of a stage, with its line break.
    pub(crate) fn line(&self, event: &Event, stage: Stage) -> Vec<u8> {
        let is_first = stage == Stage::RequestReceived;
        let made_as = event.impersonated.as_ref().filter(|_| !is_first);
        let (name, groups) = match made_as {
            Some(user) => (&*user.name, groups_of(user, "<lookup>")),
            None => ("<self>", "<lookup>".to_owned()),
        };
        let outcome = event.outcome.as_ref().filter(|_| !is_first);
        let code = outcome.map_or("<deferred>".to_owned(), |outcome| outcome.code.to_string());
        let mut line = self.id.clone();
        // Memory takes all that is written.
        let _ = writeln!(
            line,
            " stage={}{} as={} asgroups={}{} response=\"{code}\"",
            quote(stage.name()),
            self.user,
            quote(name),
            quote(&groups),
            self.uri,
        );
        line.into_bytes()
    }
}

/// Returns the line that says how many events of a plane were lost.
pub(crate) fn lost(plane: &str, count: u64, now: SystemTime) -> Vec<u8> {
    let time = nano(now);
    format!(
        "{time} AUDIT: {count} events of control plane {} were lost\n",
        quote(plane)
    )
    .into_bytes()
}

fn groups_of(user: &UserInfo, none: &str) -> String {
    if user.groups.is_empty() {
        return none.to_owned();
    }
    let groups: Vec<String> = user.groups.iter().map(|group: &Str| quote(group)).collect();
    groups.join(",")
}

/// Returns a time as Go's RFC3339Nano has it: a fraction without zeros at its end.
fn nano(time: SystemTime) -> String {
    let time = stamp(time);
    let seconds = time.to_rfc3339();
    if time.nanoseconds == 0 {
        return seconds;
    }
    let fraction = format!("{:09}", time.nanoseconds);
    format!(
        "{}.{}Z",
        seconds.trim_end_matches('Z'),
        fraction.trim_end_matches('0')
    )
}
